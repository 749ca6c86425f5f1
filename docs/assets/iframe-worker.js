// The search runs in a Worker, and a browser starts none for a page that is opened from a file. There, this class takes
// the place of Worker: the script runs in a hidden frame, and copies of the messages go both ways as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      const start = () => {
        document.body.append(this.frame);
        const inside = this.frame.contentWindow;
        const script = inside.document.createElement("script");
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data: structuredClone(data) });
          // Later, as a worker's messages come: a reader may still be sending.
          setTimeout(() => {
            this.dispatchEvent(event);
            if (this.onmessage) this.onmessage(event);
          });
        };
        script.src = url;
        script.onerror = () => this.dispatchEvent(new Event("error"));
        script.onload = () => {
          const waiting = this.waiting;
          this.waiting = null;
          waiting.forEach((data) => this.postMessage(data));
        };
        inside.document.body.append(script);
      };
      if (document.body) start();
      else addEventListener("DOMContentLoaded", start);
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else {
        const inside = this.frame.contentWindow;
        const event = new inside.MessageEvent("message", { data: inside.structuredClone(data) });
        setTimeout(() => inside.dispatchEvent(event));
      }
    }

    terminate() {
      this.frame.remove();
    }
  };
}
