//! JSON Web Tokens of other issuers. A token says who a caller is, and never what the caller may
//! do.
//!
//! The parsing is our own, over the signatures of `ring`: the order of the checks, members that are
//! given twice and second spellings in base64 matter more than what a library would save, and the
//! ones there are bring a second crypto library or one with an open advisory.
//!
//! ```text
//! compact   the text of a token, taken apart
//! members   JSON objects without a member that is given twice
//! keys      the key set of an issuer (JWKS), and signatures
//! slot      the current key set, and when it is fetched again
//! fetch     fetches key sets by URL
//! issuer    the checks of claims, and the principal with its rights
//! ```

pub mod compact;
pub mod fetch;
pub mod issuer;
pub mod keys;
mod members;
pub mod slot;
