//! Every dialect's answers, taken apart and kept to.

mod answers;
mod calls;
