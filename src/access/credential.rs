//! What proves a principal: a token of the auth file, or the certificate of a TLS connection.

pub mod certificate;
pub mod token;
