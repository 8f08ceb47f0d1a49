//! The engine on virtual time, one file a topic.

mod attempts;
mod ids;
mod timing;
