//! What the settings of a node mean for etcd.

use crate::config::{Identity, Login, Settings};
use crate::etcd::{self, Credentials};

/// `None`: this node is the only one.
pub fn of(settings: &Settings) -> Option<etcd::Settings> {
    let etcd = settings.etcd.as_ref()?;
    let login = |Login { user, password }: &Login| (user.clone(), password.expose().to_owned());
    let identity = |Identity { certificate, key }: &Identity| (certificate.expose().to_owned(), key.expose().to_owned());
    let credentials = Credentials { login: etcd.login.as_ref().map(login), identity: etcd.identity.as_ref().map(identity) };
    Some(etcd::Settings::new(etcd.endpoints.clone(), &settings.cluster, settings.session_ttl, credentials))
}
