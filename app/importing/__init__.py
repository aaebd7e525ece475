"""Files in, records out: pure, streaming, in constant memory. Writing them is `app.services.importing`."""
