//! A shard's pointer to its newest image. Replaced by whoever publishes, read by handlers: an answer is built from one
//! image, taken once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::image::Image;

/// The newest image of one shard. Clones share it.
#[derive(Clone, Debug)]
pub struct ImageCell(Rc<RefCell<Arc<Image>>>);

impl ImageCell {
    /// A cell with a first image.
    pub fn new(image: Arc<Image>) -> Self {
        Self(Rc::new(RefCell::new(image)))
    }

    /// The newest image.
    pub fn current(&self) -> Arc<Image> {
        self.0.borrow().clone()
    }

    /// Puts a newer image in the place of the current one.
    ///
    /// # Panics
    /// With an image that is older (V-81): images come in the order of their versions.
    pub fn replace(&self, image: Arc<Image>) {
        let before = self.0.replace(image);
        assert!(before.version <= self.0.borrow().version, "an image went back");
    }
}
