//! Groups of flags that several commands share, and the values made of them.

pub(crate) mod adapters;
pub(crate) mod embedded;
pub(crate) mod engine;
pub(crate) mod experts;
pub(crate) mod hub;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod open;
pub(crate) mod placement;
pub(crate) mod prompt;
pub(crate) mod prompt_cache;
pub(crate) mod reading;
pub(crate) mod sampling;
pub(crate) mod sparse;
pub(crate) mod speculation;
