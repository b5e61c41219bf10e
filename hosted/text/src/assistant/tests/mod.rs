//! Answers in every dialect: parsing, and grammars for them.

mod answers;
mod calls;
mod contents;
mod gemma4;
mod minicpm5;
mod written;
