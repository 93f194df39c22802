//! The files of a program as modules, and the uses between them.

use std::collections::BTreeMap;

use crate::source::{NamedPath, Source};

/// A module: its path within the program, as `["node", "wheel"]`; the root is empty.
pub type Module = Vec<String>;

/// The uses between the files of a program, in production code, as a reader of the files follows
/// them.
#[derive(Debug)]
pub struct Modules<'a> {
    pub sources: BTreeMap<Module, &'a Source>,
    /// Names that a module re-exports, and the path that each leads to. The path is `None` for a
    /// name of a library.
    reexports: BTreeMap<(Module, String), Option<Vec<String>>>,
}

impl<'a> Modules<'a> {
    /// Makes the modules of `sources`. `folder` holds the program, such as `src/`.
    pub fn new(folder: &str, sources: &'a [Source]) -> Self {
        let own = sources.iter().filter(|source| source.path.starts_with(folder));
        let sources = own.map(|source| (module_of(folder, &source.path), source)).collect();
        let mut modules = Self { sources, reexports: BTreeMap::new() };
        let mut reexports = BTreeMap::new();
        for (module, source) in &modules.sources {
            for path in
                source.production().filter(|path| path.is_reexport && path.inline.is_empty())
            {
                if let Some(name) = &path.import {
                    reexports
                        .insert((module.clone(), name.clone()), modules.absolute(module, path));
                }
            }
        }
        modules.reexports = reexports;
        modules
    }

    /// Returns the modules that `module` uses, each with a line. A re-exported name leads to two
    /// modules: the defining one, and the re-exporting one, which a reader opens first. Modules
    /// above `module` are left out, because they only list siblings. A re-export counts as a use.
    pub fn arrows(&self, module: &[String]) -> BTreeMap<Module, usize> {
        let Some(source) = self.sources.get(module) else { return BTreeMap::new() };
        let mut arrows = BTreeMap::new();
        for path in source.production() {
            for target in
                self.absolute(module, path).map(|path| self.met(module, &path)).unwrap_or_default()
            {
                if target != module {
                    arrows.entry(target).or_insert(path.place.line);
                }
            }
        }
        arrows
    }

    /// Returns a path from the root of the program, or `None` when it leads out of the program.
    fn absolute(&self, module: &[String], path: &NamedPath) -> Option<Vec<String>> {
        let (first, rest) = path.segments.split_first()?;
        let here: Vec<String> = module.iter().chain(&path.inline).cloned().collect();
        let mut from = match first.as_str() {
            "crate" => Vec::new(),
            "punctual" if module == ["main"] => Vec::new(),
            "self" => here,
            "super" => here.split_last()?.1.to_vec(),
            name => self.named(module, path, name)?,
        };
        for segment in rest {
            match segment.as_str() {
                "super" => from = from.split_last()?.1.to_vec(),
                "self" => {}
                _ => from.push(segment.clone()),
            }
        }
        Some(from)
    }

    /// Resolves a bare name: a module below this one, or a name from a `use`.
    fn named(&self, module: &[String], path: &NamedPath, name: &str) -> Option<Vec<String>> {
        let child: Vec<String> = module.iter().cloned().chain([name.to_owned()]).collect();
        if self.sources.contains_key(&child) {
            return Some(child);
        }
        if path.import.is_some() {
            return None;
        }
        let mut production = self.sources.get(module)?.production();
        let import = production.find(|import| import.import.as_deref() == Some(name))?;
        self.absolute(module, import)
    }

    /// Returns the modules that a reader opens when following an absolute path from `module`: the
    /// re-exporting ones, and the defining one.
    fn met(&self, module: &[String], path: &[String]) -> Vec<Module> {
        let mut met: Vec<Module> = Vec::new();
        let mut path = path.to_vec();
        // Each iteration follows one re-export.
        for _ in 0..=self.reexports.len() {
            let depth = (0..=path.len())
                .rev()
                .find(|depth| self.sources.contains_key(&path[..*depth]))
                .unwrap_or_default();
            let face = path[..depth].to_vec();
            let onward =
                path.get(depth).and_then(|name| self.reexports.get(&(face.clone(), name.clone())));
            let is_above = module.starts_with(&face);
            if onward.is_none() || !is_above {
                met.push(face);
            }
            let Some(Some(target)) = onward else { break };
            let rest = path[depth + 1..].to_vec();
            path = target.iter().cloned().chain(rest).collect();
        }
        met
    }
}

/// Returns the module of a file: that of `src/node/wheel.rs` is `["node", "wheel"]`. `src` has two
/// roots: `lib.rs`, and `main.rs`, which is the module `["main"]` here.
fn module_of(folder: &str, path: &str) -> Module {
    let name = path.trim_start_matches(folder).trim_end_matches(".rs");
    match name {
        "lib" => Vec::new(),
        "main" if folder != "src/" => Vec::new(),
        _ => name.split('/').map(str::to_owned).collect(),
    }
}
