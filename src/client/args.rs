//! The command lines of the clients.

use clap::Args;

#[derive(Args, Debug)]
pub struct Submit {}

#[derive(Args, Debug)]
pub struct Show {}

#[derive(Args, Debug)]
pub struct Cancel {}
