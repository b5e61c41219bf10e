//! Texts: how tokens are chosen ([`sampling`]), what they must keep to ([`grammar`]), and how
//! conversations become prompts ([`mod@chat_template`], [`chat`]) and answers are read ([`assistant`]).

pub mod assistant;
pub mod chat;
pub mod chat_template;
pub mod grammar;
pub mod sampling;

#[cfg(test)]
mod test_vocabulary;
