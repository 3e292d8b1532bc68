// Lets the search work where pages are opened as files: browsers start no worker there, so its script runs in a hidden frame.
(() => {
  "use strict";
  if (location.protocol !== "file:") return;
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow, page = this.frame.contentDocument;
      inside.postMessage = (data) => setTimeout(() => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      });
      inside.importScripts = () => {};
      const script = page.createElement("script");
      script.src = String(address);
      this.ready = new Promise((done) => { script.onload = done; });
      page.body.append(script);
    }
    postMessage(data) {
      const copy = structuredClone(data);
      this.ready.then(() => setTimeout(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: copy }))));
    }
    terminate() { this.frame.remove(); }
  };
})();
