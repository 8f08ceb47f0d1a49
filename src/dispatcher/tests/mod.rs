//! The engine on virtual time, one file a topic.

mod attempts;
mod batches;
mod cancel;
mod capture;
mod circuit;
mod clock;
mod edge;
mod ending;
mod faults;
mod golden;
mod health;
mod ids;
mod late;
mod pressure;
mod remote;
mod restart;
mod subscriptions;
mod timing;
mod walk;
