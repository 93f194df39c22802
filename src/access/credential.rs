//! Credentials, which prove a principal: a token of the auth file, a token of another issuer, or
//! the certificate of a TLS connection.

pub mod certificate;
pub mod jwt;
pub mod token;
