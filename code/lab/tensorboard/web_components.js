// What the trace viewer needs of Web Components version 0, which browsers have dropped:
// document.registerElement with its four callbacks, and createShadowRoot with <content>.
// The viewer's library takes its own light-DOM path when window.CustomElements says "not native".
(() => {
  "use strict";
  const definitions = new Map();  // name of the element, or value of its `is` -> definition
  const attached = new WeakSet();

  function upgrade(element) {
    if (element.__upgraded__) return;
    const definition = definitions.get(element.getAttribute("is") || element.localName);
    if (!definition || definition.tag !== element.localName) return;
    element.__upgraded__ = true;
    Object.setPrototypeOf(element, definition.prototype);
    element.createdCallback?.();
  }

  // A snapshot: callbacks add and remove elements while the tree is walked.
  const elementsOf = (node) =>
    [...(node.nodeType === Node.ELEMENT_NODE ? [node] : []), ...(node.querySelectorAll?.("*") ?? [])];

  function upgradeTree(node) {
    elementsOf(node).forEach(upgrade);
    return node;
  }

  function added(node) {
    for (const element of elementsOf(node)) {
      upgrade(element);
      if (element.__upgraded__ && element.isConnected && !attached.has(element)) {
        attached.add(element);
        element.attachedCallback?.();
      }
    }
  }

  function removed(node) {
    for (const element of elementsOf(node)) {
      if (!element.isConnected && attached.delete(element)) element.detachedCallback?.();
    }
  }

  function handle(records) {
    for (const record of records) {
      record.removedNodes.forEach(removed);
      record.addedNodes.forEach(added);
    }
  }

  const observer = new MutationObserver(handle);
  observer.observe(document, { childList: true, subtree: true });

  function reportAttributes(prototype) {
    for (const method of ["setAttribute", "removeAttribute"]) {
      const change = prototype[method];
      prototype[method] = function (name, ...value) {
        const before = this.getAttribute(name);
        change.call(this, name, ...value);
        const after = this.getAttribute(name);
        if (before !== after) this.attributeChangedCallback(name, before, after);
      };
    }
  }

  document.registerElement = (name, options = {}) => {
    const prototype = options.prototype ?? Object.create(HTMLElement.prototype);
    const definition = { tag: options.extends ?? name.toLowerCase(), prototype };
    const constructor = function () {
      return options.extends ? document.createElement(options.extends, name)
        : document.createElement(name);
    };
    constructor.prototype = prototype;
    prototype.constructor = constructor;
    if (prototype.attributeChangedCallback) reportAttributes(prototype);
    definitions.set(name.toLowerCase(), definition);
    added(document);
    return constructor;
  };

  const createElement = Document.prototype.createElement;
  Document.prototype.createElement = function (name, is) {
    // Only names with a hyphen may have a shadow root.
    const element = createElement.call(this, name === "overlay" ? "tr-overlay" : name);
    if (typeof is === "string") element.setAttribute("is", is);
    upgrade(element);
    return element;
  };
  for (const [owner, method] of [[Node.prototype, "cloneNode"], [Document.prototype, "importNode"]]) {
    const copy = owner[method];
    owner[method] = function (...values) {
      return upgradeTree(copy.apply(this, values));
    };
  }

  Element.prototype.createShadowRoot = function () {
    const root = this.attachShadow({ mode: "open" });
    new MutationObserver(() => root.querySelectorAll("content").forEach((content) => {
      content.replaceWith(createElement.call(document, "slot"));
    })).observe(root, { childList: true, subtree: true });
    return root;
  };

  Object.defineProperty(document, "_currentScript", { get: () => document.currentScript });
  window.wrap = window.unwrap = (node) => node;
  window.WebComponents = {};
  window.CustomElements = {
    useNative: false,
    hasNative: false,
    ready: true,
    instanceof: (object, constructor) => object instanceof constructor,
    upgrade,
    upgradeDocumentTree: added,
    takeRecords: () => handle(observer.takeRecords()),
  };
  document.addEventListener("DOMContentLoaded", () => {
    added(document);
    document.dispatchEvent(new CustomEvent("WebComponentsReady", { bubbles: true }));
  });
})();
