// Search excerpts: without the page's buttons, and with formulas as plain words.
// From file:// a browser reads no other page, so there the results come without excerpts.
document.addEventListener("DOMContentLoaded", () => {
  if (typeof Search === "undefined") return; // only the search page has it
  const notText = ".bd-header-article, .ways-out, #jb-print-docs-body, #print-main-content, div.math";
  const htmlToText = Search.htmlToText;
  Search.htmlToText = (html, anchor) => {
    const page = new DOMParser().parseFromString(html, "text/html");
    page.querySelectorAll(notText).forEach((element) => element.remove());
    page.querySelectorAll("span.math").forEach((element) => {
      element.textContent = element.textContent.replace(/^\\\(|\\\)$/g, "");
    });
    return htmlToText(page.documentElement.outerHTML, anchor);
  };
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
});

// The menu of a formula: without the entries whose files are not on board. Screen readers find
// every formula as hidden MathML.
window.addEventListener("load", () => {
  window.MathJax?.startup?.promise?.then(() => {
    const menu = MathJax.startup.document.menu.menu;
    for (const entry of [["Accessibility"], ["Language"], ["Settings", "Renderer"]])
      menu.findID(...entry)?.hide();
  });
});
