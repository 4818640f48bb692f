package api

import (
	"embed"
	"net/http"

	"northstar/api/problem"
)

//go:embed dashboard
var dashboardFiles embed.FS

// dashboardPolicy lets the page load only what this node serves.
const dashboardPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

var dashboardTypes = map[string]string{
	"index.html": "text/html; charset=utf-8",
	"style.css":  "text/css; charset=utf-8",
	"app.js":     "text/javascript; charset=utf-8",
	"icon.svg":   "image/svg+xml",
}

// getDashboard serves GET /.
func getDashboard(c *request) error { return c.dashboardFile("index.html") }

// getDashboardFile serves GET /dashboard/{file}.
func getDashboardFile(c *request) error { return c.dashboardFile(c.param) }

func (c *request) dashboardFile(name string) error {
	media, ok := dashboardTypes[name]
	if !ok {
		return problem.Status(http.StatusNotFound, "path: the dashboard has no %q", name)
	}
	data, err := dashboardFiles.ReadFile("dashboard/" + name)
	if err != nil {
		return err
	}
	h := c.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", dashboardPolicy)
	h.Set("Referrer-Policy", "no-referrer")
	return c.respond(http.StatusOK, []string{media}, data)
}
