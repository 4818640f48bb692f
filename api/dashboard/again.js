// Loads the page again if a module of it could not be loaded. A browser gives up what waits for a connection when the
// machine's network changes, and during an upgrade two nodes may have different modules.
document.getElementById("app").addEventListener("error", () => setTimeout(() => location.reload(), 1000));
