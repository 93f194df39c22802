//! The style, the script and the icon of the pages. The paths contain a hash of the content, so
//! browsers keep the files for ever.

use std::fmt::Write as _;
use std::sync::LazyLock;

use sha2::{Digest as _, Sha256};

/// A file that pages load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asset {
    Style,
    Script,
    Icon,
}

impl Asset {
    const ALL: [Self; 3] = [Self::Style, Self::Script, Self::Icon];

    /// Returns the file of a path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|asset| asset.path() == path)
    }

    /// Returns the path of the file.
    pub fn path(self) -> &'static str {
        static PATHS: LazyLock<[String; 3]> = LazyLock::new(|| Asset::ALL.map(Asset::hashed));
        let [style, script, icon] = &*PATHS;
        match self {
            Self::Style => style,
            Self::Script => script,
            Self::Icon => icon,
        }
    }

    fn hashed(self) -> String {
        let hash: [u8; 32] = Sha256::digest(self.content()).into();
        let mut path = String::from("/console/assets/");
        for byte in hash.iter().take(8) {
            let written = write!(path, "{byte:02x}");
            debug_assert!(written.is_ok(), "to write to a String never fails");
        }
        path.push_str(match self {
            Self::Style => ".css",
            Self::Script => ".js",
            Self::Icon => ".svg",
        });
        path
    }

    pub const fn content(self) -> &'static str {
        match self {
            Self::Style => include_str!("assets/console.css"),
            Self::Script => include_str!("assets/console.js"),
            Self::Icon => include_str!("assets/icon.svg"),
        }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Style => "text/css; charset=utf-8",
            Self::Script => "text/javascript; charset=utf-8",
            Self::Icon => "image/svg+xml",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_that_of_its_file() {
        for asset in Asset::ALL {
            assert_eq!(Asset::of_path(asset.path()), Some(asset));
            assert_eq!(
                asset.path().len(),
                "/console/assets/".len() + 16 + asset.path()[32..].len()
            );
        }
        assert_eq!(Asset::of_path("/console/assets/console.css"), None);
    }

    #[test]
    fn nothing_is_loaded_from_elsewhere() {
        for asset in Asset::ALL {
            let text = asset.content().replace("http://www.w3.org/2000/svg", "");
            assert!(!text.contains("//") && !text.contains("@import"), "{asset:?}");
        }
    }
}
