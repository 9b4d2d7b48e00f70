// Lets the search work when the site is opened from a folder. Browsers refuse to start a worker from a file:// address,
// so a hidden frame runs the worker's script instead, and messages pass between the two as they would with a worker.
if (location.protocol === "file:") {
  class FrameWorker extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      this.frame = frame
      this.started = new Promise((resolve, reject) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow
          inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
          const script = inside.document.createElement("script")
          script.src = address
          script.onload = resolve
          script.onerror = reject
          inside.document.body.append(script)
        }, { once: true })
      })
      document.body.append(frame)
    }

    postMessage(data) {
      this.started.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = FrameWorker
}
