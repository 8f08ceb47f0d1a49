//! The engine on virtual time, one file a topic.

mod attempts;
mod batches;
mod cancel;
mod capture;
mod edge;
mod ending;
mod golden;
mod ids;
mod late;
mod pressure;
mod remote;
mod subscriptions;
mod timing;
mod walk;
