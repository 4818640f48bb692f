package api

import (
	"net/http"
	"strings"

	"northstar/api/dashboard"
	"northstar/api/problem"
)

// pagePolicy lets the page load only what this node serves. pageConnections follows it.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; connect-src 'self'"

func getDashboard(c *request) error { return c.dashboardFile("index.html") }

func getDashboardFile(c *request) error { return c.dashboardFile(c.param) }

func (c *request) dashboardFile(name string) error {
	data, media, ok := dashboard.File(name)
	if !ok {
		return problem.Status(http.StatusNotFound, "path: the dashboard has no %q", name)
	}
	h := c.Header()
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", pagePolicy+pageConnections(c.s.memberOrigins(c.r)))
	h.Set("Referrer-Policy", "no-referrer")
	return c.respond(http.StatusOK, []string{media}, data)
}

// pageConnections lets the page call the other members: it moves to one of them when this node fails.
func pageConnections(origins []string) string {
	if len(origins) == 0 {
		return ""
	}
	return " " + strings.Join(origins, " ")
}
