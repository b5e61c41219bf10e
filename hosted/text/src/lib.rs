//! Text generation around the model: sampling ([`sampling`]), grammars ([`grammar`]), rendering of conversations
//! as prompts ([`mod@chat_template`], [`chat`]), and parsing of answers ([`assistant`]).

pub mod assistant;
pub mod chat;
pub mod chat_template;
pub mod grammar;
pub mod sampling;

#[cfg(test)]
mod test_vocabulary;
