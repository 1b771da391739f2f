// Draws each figure when it scrolls into view.
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) {
    observer.unobserve(entry.target);
    const chart = JSON.parse(entry.target.querySelector("script").textContent);
    vegaEmbed(entry.target.querySelector(".chart"), chart, { actions: false, renderer: "svg" });
  }
}, { rootMargin: "300px" });
document.querySelectorAll("figure").forEach((figure) => observer.observe(figure));
