//! The settings of training data that problems and errors name. [`Message`](cytoscope_storage::message::Message) keeps them.

pub use cytoscope_storage::setting::data::*;
