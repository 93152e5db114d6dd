//! What is special of PostgreSQL: transactions that stay open, connections, plans, hints, and its own faces.

mod act;
mod bounds;
mod families;
mod hints;
mod looking;
mod open;
mod plans;
mod pooler;
mod schedules;
mod statements;
mod transactions;
mod traps;
mod unique;
