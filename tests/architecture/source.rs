//! Reads Rust source as far as the rules need: paths, methods, texts, and parts for tests only.
//! `syn` parses the file, and leaves macros as tokens, which are read one by one.

use proc_macro2::{Delimiter, Ident, Span, TokenStream, TokenTree};
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

/// A Rust file.
#[derive(Clone, Debug)]
pub struct Source {
    /// The path from the root of the repository, with `/`.
    pub path: String,
    pub text: String,
    pub facts: Facts,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut facts = Facts { shape: Shape::of(&file.items), ..Facts::default() };
        // A file declared under `#[cfg(test)]` is recognized by its name.
        let is_test =
            path.starts_with("tests/") || path.ends_with("/tests.rs") || path.contains("/tests/");
        Reader { facts: &mut facts, test_depth: usize::from(is_test), inline: Vec::new() }
            .visit_file(&file);
        Self { path: path.to_owned(), text: text.to_owned(), facts }
    }

    /// Returns the paths in code that is not for tests only.
    pub fn production(&self) -> impl Iterator<Item = &NamedPath> {
        self.facts.paths.iter().filter(|path| !path.place.is_test)
    }
}

/// The position of an item in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The line, counted from 1.
    pub line: usize,
    /// True in tests, and in items under `#[cfg(test)]`.
    pub is_test: bool,
}

/// A path as written in the code, one for each leaf of a `use` tree: `crate::a::{b, c::D}` is
/// `crate::a::b` and `crate::a::c::D`.
#[derive(Clone, Debug)]
pub struct NamedPath {
    pub segments: Vec<String>,
    pub place: Place,
    /// The inline modules of the file that contain it.
    pub inline: Vec<String>,
    /// The name that a `use` imports it under.
    pub import: Option<String>,
    /// True in `pub use` and `pub(..) use`.
    pub is_reexport: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// All paths of at least two segments, and all paths in `use`.
    pub paths: Vec<NamedPath>,
    /// Calls of methods.
    pub calls: Vec<(String, Place)>,
    /// Attributes, by their last name.
    pub attributes: Vec<(String, Place)>,
    /// String literals. Those within one `concat!` are joined.
    pub texts: Vec<(String, Place)>,
    pub shape: Shape,
}

/// The kind of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shape {
    /// A file that declares modules with files of their own.
    Root,
    /// A file of constants, without code that runs.
    Table,
    #[default]
    Code,
}

impl Shape {
    fn of(items: &[Item]) -> Self {
        let is_declared =
            |item: &Item| matches!(item, Item::Mod(module) if module.content.is_none());
        let is_constant =
            |item: &Item| matches!(item, Item::Use(_) | Item::Const(_) | Item::Static(_));
        if items.iter().any(is_declared) {
            Self::Root
        } else if items.iter().all(is_constant) {
            Self::Table
        } else {
            Self::Code
        }
    }
}

struct Reader<'a> {
    facts: &'a mut Facts,
    /// The number of enclosing nodes that are for tests only.
    test_depth: usize,
    inline: Vec<String>,
}

impl Reader<'_> {
    fn place(&self, span: Span) -> Place {
        Place { line: span.start().line, is_test: self.test_depth > 0 }
    }

    /// Reads a node that may be under `#[cfg(test)]`.
    fn under(&mut self, attributes: &[Attribute], read: impl FnOnce(&mut Self)) {
        let is_test = attributes.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<Ident>().is_ok_and(|condition| condition == "test")
        });
        self.test_depth += usize::from(is_test);
        read(self);
        self.test_depth -= usize::from(is_test);
    }

    fn name(&mut self, segments: Vec<String>, span: Span) {
        if segments.len() > 1 {
            let (place, inline) = (self.place(span), self.inline.clone());
            self.facts.paths.push(NamedPath {
                segments,
                place,
                inline,
                import: None,
                is_reexport: false,
            });
        }
    }

    /// Records the leaves of a `use` tree.
    fn import(&mut self, tree: &UseTree, head: &[String], is_reexport: bool) {
        let mut leaf = |name: &str, import: String| {
            let segments = head
                .iter()
                .cloned()
                .chain([name.to_owned()])
                .filter(|name| name != "self" || head.is_empty());
            let (segments, place) = (segments.collect::<Vec<_>>(), self.place(tree.span()));
            let import = if import == "self" { segments.last().cloned() } else { Some(import) };
            self.facts.paths.push(NamedPath {
                segments,
                place,
                inline: self.inline.clone(),
                import,
                is_reexport,
            });
        };
        match tree {
            UseTree::Path(path) => {
                let head: Vec<String> =
                    head.iter().cloned().chain([path.ident.to_string()]).collect();
                self.import(&path.tree, &head, is_reexport);
            }
            UseTree::Name(name) => leaf(&name.ident.to_string(), name.ident.to_string()),
            UseTree::Rename(rename) => leaf(&rename.ident.to_string(), rename.rename.to_string()),
            UseTree::Glob(_) => leaf("*", "*".to_owned()),
            UseTree::Group(group) => {
                group.items.iter().for_each(|item| self.import(item, head, is_reexport))
            }
        }
    }

    /// Reads the arguments of a macro, which are only known as tokens.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let is = |at: usize, sign: char| {
            let Some(TokenTree::Punct(punct)) = tokens.get(at) else { return false };
            punct.as_char() == sign
        };
        let mut at = 0;
        while let Some(token) = tokens.get(at) {
            match token {
                // A visibility is not a use.
                TokenTree::Ident(word) if *word == "pub" => {
                    at += usize::from(matches!(tokens.get(at + 1), Some(TokenTree::Group(_))));
                }
                TokenTree::Ident(first) => {
                    let mut segments = vec![first.to_string()];
                    while is(at + 1, ':')
                        && is(at + 2, ':')
                        && let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                    {
                        segments.push(next.to_string());
                        at += 3;
                    }
                    if at > 0 && segments.len() == 1 && is(at - 1, '.') {
                        self.facts.calls.push((segments.remove(0), self.place(first.span())));
                    } else if *first == "concat"
                        && is(at + 1, '!')
                        && let Some(TokenTree::Group(group)) = tokens.get(at + 2)
                    {
                        self.joined(group.stream());
                        at += 2;
                    } else {
                        self.name(segments, first.span());
                    }
                }
                TokenTree::Group(group) => {
                    if at > 0
                        && is(at - 1, '#')
                        && group.delimiter() == Delimiter::Bracket
                        && let Some(TokenTree::Ident(name)) = group.stream().into_iter().next()
                    {
                        self.facts.attributes.push((name.to_string(), self.place(name.span())));
                    }
                    self.tokens(group.stream());
                }
                TokenTree::Literal(literal) => {
                    if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.facts.texts.push((text.value(), self.place(literal.span())));
                    }
                }
                TokenTree::Punct(_) => {}
            }
            at += 1;
        }
    }

    /// Joins the string literals of a `concat!`.
    fn joined(&mut self, tokens: TokenStream) {
        let place = self.place(tokens.span());
        let texts = tokens
            .into_iter()
            .filter_map(|token| syn::parse_str::<syn::LitStr>(&token.to_string()).ok());
        let text: String = texts.map(|text| text.value()).collect();
        self.facts.texts.push((text, place));
    }
}

impl Visit<'_> for Reader<'_> {
    fn visit_item(&mut self, item: &Item) {
        let attributes: &[Attribute] = match item {
            Item::Const(item) => &item.attrs,
            Item::Enum(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            Item::Impl(item) => &item.attrs,
            Item::Macro(item) => &item.attrs,
            Item::Mod(item) => &item.attrs,
            Item::Static(item) => &item.attrs,
            Item::Struct(item) => &item.attrs,
            Item::Trait(item) => &item.attrs,
            Item::Type(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            _ => &[],
        };
        self.under(attributes, |reader| visit::visit_item(reader, item));
    }

    fn visit_item_mod(&mut self, module: &syn::ItemMod) {
        self.inline.push(module.ident.to_string());
        visit::visit_item_mod(self, module);
        self.inline.pop();
    }

    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
    }

    fn visit_impl_item_fn(&mut self, method: &syn::ImplItemFn) {
        self.under(&method.attrs, |reader| visit::visit_impl_item_fn(reader, method));
    }

    fn visit_variant(&mut self, variant: &syn::Variant) {
        self.under(&variant.attrs, |reader| visit::visit_variant(reader, variant));
    }

    fn visit_field(&mut self, field: &syn::Field) {
        self.under(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_arm(&mut self, arm: &syn::Arm) {
        self.under(&arm.attrs, |reader| visit::visit_arm(reader, arm));
    }

    fn visit_path(&mut self, path: &syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.name(segments, path.span());
        visit::visit_path(self, path);
    }

    /// A visibility is not a use.
    fn visit_vis_restricted(&mut self, _: &syn::VisRestricted) {}

    fn visit_expr_method_call(&mut self, call: &syn::ExprMethodCall) {
        self.facts.calls.push((call.method.to_string(), self.place(call.method.span())));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_lit_str(&mut self, text: &syn::LitStr) {
        self.facts.texts.push((text.value(), self.place(text.span())));
    }

    fn visit_macro(&mut self, call: &syn::Macro) {
        self.visit_path(&call.path);
        if call.path.is_ident("concat") {
            self.joined(call.tokens.clone())
        } else {
            self.tokens(call.tokens.clone())
        }
    }

    fn visit_attribute(&mut self, attribute: &Attribute) {
        if let Some(last) = attribute.path().segments.last() {
            self.facts.attributes.push((last.ident.to_string(), self.place(attribute.span())));
        }
        self.visit_path(attribute.path());
        // A doc comment is not a text of the program.
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }
}
