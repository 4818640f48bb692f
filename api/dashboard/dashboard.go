// Package dashboard holds the page with which operators watch and operate a cluster. It is plain HTML, CSS and
// JavaScript modules without a build step. A node serves the files as they are.
package dashboard

import (
	"embed"
	"path"
)

//go:embed *.html *.css *.js *.svg
var files embed.FS

var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// File returns a file of the page and its media type, and reports whether there is such a file.
func File(name string) (data []byte, contentType string, ok bool) {
	data, err := files.ReadFile(name)
	return data, contentTypes[path.Ext(name)], err == nil
}

// Names returns the names of all files.
func Names() []string {
	entries, _ := files.ReadDir(".") // an embedded directory is always readable
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}
