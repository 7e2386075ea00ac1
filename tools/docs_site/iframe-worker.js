/* The site's search runs in a Worker, and browsers start none for a page from the disk.
   There a hidden frame takes its place: the same messages, the same script. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      url = new URL(url, location);
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow, page = this.frame.contentDocument;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (address) => new Promise((done, failed) => {
        const script = page.createElement("script");
        Object.assign(script, { src: new URL(address, url), onload: done, onerror: failed });
        page.body.append(script);
      });
      // One after the other, as in a Worker; the search awaits what this returns.
      inside.importScripts = (...all) =>
        all.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      load(url).then(() => {
        const waiting = this.waiting;
        this.waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }
    terminate() { this.frame.remove(); }
  };
}
