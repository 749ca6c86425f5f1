// The form of a model that takes a picture: drawn here where it is small and grey, or chosen from files.

import {bytesText, element} from "./elements.js";
import {Pad} from "./pad.js";
import {pngOf} from "./png.js";
import {Preparing} from "./preparing.js";
import {SAMPLES} from "./samples.js";
import {picture} from "./strokes.js";

// A picture with more pixels than this a side is nothing that one draws.
const DRAWN = 64;
const TYPES = ["image/png", "image/jpeg"];

// `form`: what the server says of the model; `limit`: the most bytes that it takes.
export function imageForm(form, limit, said) { return new ImageForm(form, limit, said); }

class ImageForm {
  constructor(form, limit, said) {
    const {width, height, color, draws} = form;
    Object.assign(this, {width, height, color, found: draws, limit, said, file: null});
    this.preparing = new Preparing(form);
    this.draws = color === "L" && width !== null && height !== null && width <= DRAWN && height <= DRAWN;
    this.seen = element("canvas", {class: "seen", id: "seen", role: "img", "aria-label": "Nothing yet", width: 1, height: 1});
    this.caption = element("figcaption", {id: "seen-caption"});
    const figure = element("figure", {}, this.seen, this.caption);
    const file = this.chooser();
    this.element = this.draws ? element("div", {class: "picture"}, ...this.drawing(figure)) : element("div", {class: "file"}, file, figure);
    this.below = element("div", {}, ...(this.draws ? [this.help(), file] : []), this.preparing.element);
    this.refresh();
  }

  drawing(figure) {
    const canvas = element("canvas", {
      id: "pad", class: "pad", tabindex: 0, role: "application", "aria-label": "Drawing area, empty", "aria-describedby": "pad-help",
    });
    this.hint = element("span", {class: "hint", id: "hint", "aria-hidden": "true"}, "Draw here");
    this.pad = new Pad(canvas, () => this.drawn(), this.said);
    const digits = Object.keys(SAMPLES).map((digit) => element("button", {
      type: "button", "aria-label": `Sample ${digit}`, onclick: () => this.pad.setStrokes(SAMPLES[digit].map((stroke) => [...stroke])),
    }, digit));
    return [element("div", {class: "paper"}, canvas, this.hint), element("div", {class: "beside"}, figure,
      element("div", {class: "tools"},
        element("button", {type: "button", id: "undo", onclick: () => this.pad.undo()}, "Undo"),
        element("button", {type: "button", id: "clear", onclick: () => this.pad.clear()}, "Clear"))),
    element("div", {class: "samples", role: "group", "aria-labelledby": "samples-title"},
      element("span", {id: "samples-title"}, "Use a sample"), element("div", {class: "digits"}, ...digits))];
  }

  help() {
    return element("p", {class: "help", id: "pad-help"}, "Draw with the mouse, a pen or a finger. With keys: arrows move the pen, ",
      element("kbd", {}, "Space"), " puts it down and lifts it, ", element("kbd", {}, "Backspace"), " takes a stroke back, ",
      element("kbd", {}, "Delete"), " clears, ", element("kbd", {}, "Enter"), " predicts.");
  }

  chooser() {
    this.input = element("input", {
      type: "file", id: "file", accept: TYPES.join(","), "aria-describedby": "file-help", onchange: () => this.choose(this.input.files[0]),
    });
    const size = this.width === null || this.height === null ? "of any size" : `of ${this.width} x ${this.height} pixels`;
    const drop = element("div", {class: "drop", id: "drop"},
      element("label", {for: "file"}, this.draws ? "Or a picture from a file" : "A picture from a file"), this.input, this.camera(),
      ...this.answers(),
      element("p", {class: "help", id: "file-help"}, `PNG or JPEG, up to ${bytesText(this.limit)}; it can be dropped or pasted here. ` +
        `The server turns it into what the model takes: ${this.color === "L" ? "grey" : this.color} ${size}.`));
    const over = (event) => {
      event.preventDefault();
      drop.classList.toggle("over", event.type === "dragover");
    };
    for (const name of ["dragover", "dragleave", "drop"]) drop.addEventListener(name, over);
    return drop;
  }

  // For phones: other devices take it for another button to choose a file.
  camera() {
    const taken = element("input", {type: "file", id: "camera", class: "hidden", accept: "image/jpeg", capture: "environment", tabindex: -1,
      "aria-label": "A picture from the camera", onchange: () => this.choose(taken.files[0])});
    return element("span", {class: "touch"}, taken, element("button", {type: "button", onclick: () => taken.click()}, "Take a picture"));
  }

  // How the outputs are read, where the server recognises boxes or masks in them.
  answers() {
    if (this.found === null) return [];
    const {kind, sure} = this.found;
    this.reading = element("select", {id: "reading"},
      element("option", {value: kind, selected: sure}, `${kind === "boxes" ? "Boxes" : "A mask"}, drawn into the picture`),
      element("option", {value: "none", selected: !sure}, "The outputs as they are"));
    return [element("label", {for: "reading", class: "second"}, "The answer"), this.reading];
  }

  // What the address adds: nothing where the server would choose the same.
  query() {
    const prepared = this.preparing.query();
    if (this.found === null) return prepared;
    const usual = this.found.sure ? this.found.kind : "none";
    return this.reading.value === usual ? prepared : `${prepared}&draw=${this.reading.value}`;
  }

  choose(file) {
    if (file === undefined) return;
    this.file = file;
    if (this.input.files[0] !== file) this.input.value = "";
    this.pad?.blank();
    this.refresh();
    this.said(`${file.name} is chosen`);
  }

  drawn() {
    this.file = null;
    this.input.value = "";
    this.refresh();
  }

  refresh() {
    if (this.draws) this.hint.hidden = this.pad.strokes.length > 0 || this.file !== null;
    if (this.file !== null) this.showFile(this.file);
    else if (this.draws && this.pad.strokes.length > 0) this.showDrawing();
    else this.show("Nothing yet", this.draws ? "Draw something: this is where you see what the model sees." : "No picture is chosen yet.");
  }

  show(label, caption) {
    Object.assign(this.seen, {width: 1, height: 1});
    this.seen.setAttribute("aria-label", label);
    this.caption.textContent = caption;
  }

  showDrawing() {
    const [width, height] = [this.width, this.height];
    this.show(`The drawing in ${width} x ${height} pixels`, `What the model sees: ${width} x ${height} pixels, cropped to the ink.`);
    Object.assign(this.seen, {width, height});
    this.seen.className = "seen pixels";
    const image = new ImageData(width, height);
    picture(this.pad.strokes, width, height).forEach((value, k) => image.data.set([value, value, value, 255], 4 * k));
    this.seen.getContext("2d").putImageData(image, 0, 0);
  }

  async showFile(file) {
    this.show(`The picture ${file.name}`, `${file.name}, ${bytesText(file.size)}`);
    this.seen.className = "seen";
    const image = await createImageBitmap(file).catch(() => null);
    if (image === null || file !== this.file) return;
    const scale = Math.min(1, 640 / Math.max(image.width, image.height));
    Object.assign(this.seen, {width: Math.max(1, image.width * scale), height: Math.max(1, image.height * scale)});
    this.seen.getContext("2d").drawImage(image, 0, 0, this.seen.width, this.seen.height);
    this.caption.textContent = `${file.name}, ${image.width} x ${image.height} pixels, ${bytesText(file.size)}`;
  }

  // What is sent; an Error says what is missing.
  async sent() {
    if (this.file !== null) return this.sentFile(this.file);
    if (!this.draws) throw new Error("Choose a picture first.");
    if (this.pad.strokes.length === 0) throw new Error("Draw something first, use a sample, or choose a picture.");
    const pixels = picture(this.pad.strokes, this.width, this.height);
    return {type: "image/png", body: await pngOf(pixels, this.width, this.height)};
  }

  sentFile(file) {
    if (!TYPES.includes(file.type)) throw new Error(`${file.name} is no PNG or JPEG picture.`);
    if (file.size > this.limit) throw new Error(`${file.name} has ${bytesText(file.size)}; the server takes up to ${bytesText(this.limit)}.`);
    return {type: file.type, body: file};
  }
}
