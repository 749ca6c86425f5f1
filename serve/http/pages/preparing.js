// How a picture becomes the model's input: what the server does, in words, and the fields that change it.

import {element} from "./elements.js";

// What models are trained with: value = (pixel * scale - mean) / std. The second one's numbers are ImageNet's own means
// and deviations, which torchvision and most other libraries use.
const VALUES = {
  unit: {title: "0 to 1", scale: 1 / 255},
  imagenet: {title: "0 to 1, then normalised as for ImageNet", scale: 1 / 255, mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]},
  signed: {title: "-1 to 1", scale: 2 / 255, mean: [1]},
  pixels: {title: "0 to 255", scale: 1},
};
const FITS = {stretch: "Stretch each side", letterbox: "Pad with grey", crop: "Crop"};
const COLORS = {L: ["L"], RGB: ["RGB", "BGR"], BGR: ["RGB", "BGR"], RGBA: ["RGBA", "BGRA"], BGRA: ["RGBA", "BGRA"]};

export class Preparing {
  constructor(form) {
    this.form = form;
    this.values = this.choice("values", "Values", this.valuesOffered(), form.missing === null ? "own" : "unit");
    this.fit = this.choice("fit", "Another size", Object.entries(FITS), form.fit);
    this.color = this.choice("color", "Channels", COLORS[form.color].map((each) => [each, each]), form.color);
    const numbers = {scale: form.scale, mean: form.mean.join(", "), std: form.std.join(", ")};
    this.numbers = Object.fromEntries(Object.entries(numbers).map(([name, value]) => [name, this.number(name, value)]));
    this.custom = element("div", {class: "fields"}, ...Object.values(this.numbers).map((each) => each.field));
    this.custom.hidden = true;
    this.text = element("p", {class: "help", id: "prepared"});
    this.element = element("details", {class: "preparing", id: "preparing", open: form.missing !== null},
      element("summary", {}, "Preprocessing"), this.text,
      ...(form.missing === null ? [] : [element("p", {class: "help", id: "assumed"},
        "The model doesn't say how pixels become its input. Values of 0 to 1 are only a guess: choose what it was trained with.")]),
      element("div", {class: "fields"}, ...[this.values, this.fit, this.color].map((each) => each.field)), this.custom);
    this.changed();
  }

  valuesOffered() {
    const fits = ([, {mean = [0]}]) => mean.length === 1 || this.form.color.length === mean.length;
    const own = this.form.missing === null ? [["own", "As the model declares"]] : [];
    return [...own, ...Object.entries(VALUES).filter(fits).map(([name, {title}]) => [name, title]), ["other", "Other numbers"]];
  }

  choice(name, title, options, chosen) {
    const select = element("select", {id: `prepare-${name}`, onchange: () => this.changed()},
      ...options.map(([value, text]) => element("option", {value, selected: value === chosen}, text)));
    return {select, field: element("div", {}, element("label", {for: `prepare-${name}`}, title), select)};
  }

  number(name, value) {
    const input = element("input", {type: "text", id: `prepare-${name}`, autocomplete: "off", spellcheck: "false", value: String(value),
      oninput: () => this.changed()});
    return {input, field: element("div", {}, element("label", {for: `prepare-${name}`}, name), input)};
  }

  changed() {
    this.custom.hidden = this.values.select.value !== "other";
    let said;
    try {
      said = this.said();
    } catch {
      said = {};
    }
    this.text.textContent = wordsOf({...this.form, fit: this.fit.select.value, color: this.color.select.value, ...said});
  }

  // The numbers that are sent; none where the model's own hold. An Error names the field that is no number.
  said() {
    const {value} = this.values.select;
    if (value === "own") return {};
    if (value !== "other") return {mean: [0], std: [1], ...VALUES[value]};
    const read = ([name, {input}]) => [name, numbersOf(name, input)];
    const {scale, mean, std} = Object.fromEntries(Object.entries(this.numbers).map(read));
    return {scale: scale[0], mean, std};
  }

  // What the address adds: nothing where the server would do the same.
  query() {
    const {scale, mean, std} = this.said();
    const numbers = scale === undefined ? [] : [["scale", scale], ["mean", mean.join(",")], ["std", std.join(",")]];
    const words = [["fit", this.fit.select.value], ["color", this.color.select.value]].filter(([name, value]) => value !== this.form[name]);
    return [...numbers, ...words].map(([name, value]) => `&${name}=${encodeURIComponent(value)}`).join("");
  }
}

// A number, a fraction such as 1/255, or several with commas between.
function numbersOf(name, input) {
  input.removeAttribute("aria-invalid");
  const numbers = input.value.split(",").map((text) => {
    const [over, under = "1", ...rest] = text.split("/").map((part) => part.trim());
    return rest.length > 0 || over === "" || under === "" ? NaN : Number(over) / Number(under);
  });
  if (numbers.every(Number.isFinite)) return numbers;
  input.setAttribute("aria-invalid", "true");
  input.focus();
  throw new Error(`${name} is ${JSON.stringify(input.value)}; it is a number, or one for each channel with commas between.`);
}

// A scale of 1/255 or 2/255 as it is known.
function shareText(scale) {
  const share = Math.round(scale * 255);
  if (share < 1 || share > 9 || Math.abs(scale * 255 - share) > 1e-6) return scale === 1 ? "pixel" : undefined;
  return share === 1 ? "pixel / 255" : `pixel x ${share} / 255`;
}

function wordsOf({color, layout, width, height, fit, scale, mean, std}) {
  const size = width === null || height === null ? "of the picture's own size" : `${width} x ${height} pixels, ${{stretch: "stretched", letterbox: "padded with grey", crop: "cropped"}[fit]}`;
  const short = (numbers) => numbers.map((each) => String(Number(each.toPrecision(4)))).join(", ");
  const shifted = mean.some((each) => each !== 0) ? ` - (${short(mean)})` : "";
  const divided = std.some((each) => each !== 1) ? ` / (${short(std)})` : "";
  const scaled = shareText(scale) ?? `pixel x ${short([scale])}`;
  return `The server makes it ${color === "L" ? "grey" : color}, ${size}, layout ${layout}; value = ${divided === "" ? scaled + shifted : `(${scaled}${shifted})${divided}`}.`;
}
