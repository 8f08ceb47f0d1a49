//! A writer for our own JSON documents that can carry a stored JSON text unchanged, which a parsed value could not.

/// Writes the members of one object in the order they are given.
pub(crate) struct Object {
    out: String,
}

/// The text of one object.
pub(crate) fn object(build: impl FnOnce(&mut Object)) -> String {
    let mut object = Object { out: "{".to_owned() };
    build(&mut object);
    object.out.push('}');
    object.out
}

/// The text of one array of JSON texts.
pub(crate) fn array(items: impl IntoIterator<Item = String>) -> String {
    let mut out = "[".to_owned();
    for item in items {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(&item);
    }
    out.push(']');
    out
}

/// The text of one string.
pub(crate) fn string(text: &str) -> String {
    // Only UTF-8 was quoted, so nothing is replaced here.
    String::from_utf8_lossy(&crate::wire::splice::quote(text)).into_owned()
}

impl Object {
    /// A member whose value is this JSON text.
    pub(crate) fn raw(&mut self, name: &str, json: &str) -> &mut Object {
        if self.out.len() > 1 {
            self.out.push(',');
        }
        self.out.push_str(&string(name));
        self.out.push(':');
        self.out.push_str(json);
        self
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) -> &mut Object {
        self.raw(name, &string(text))
    }

    /// A number or a boolean.
    pub(crate) fn plain(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Object {
        self.raw(name, &value.to_string())
    }

    pub(crate) fn null(&mut self, name: &str) -> &mut Object {
        self.raw(name, "null")
    }

    pub(crate) fn object(&mut self, name: &str, build: impl FnOnce(&mut Object)) -> &mut Object {
        self.raw(name, &object(build))
    }
}
