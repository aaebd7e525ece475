"""Alembic's entry: runs on the connection that `app.storage.migrations` hands over.

Each migration commits by itself: none holds its locks while the next one works, and one may leave its transaction
(`with op.get_context().autocommit_block():`) for what cannot run in any, as CREATE INDEX CONCURRENTLY.
"""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transaction_per_migration=True)
with context.begin_transaction():
    context.run_migrations()
