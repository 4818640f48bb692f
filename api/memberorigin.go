package api

import (
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"

	"northstar/cluster"
)

// The page of one member may call the others, so that it moves to another node when its own fails. A browser allows
// that only if the called node names the page's origin. Origins of members are named, and no others.

// plainAddress is a host:port without characters that mean something in a Content-Security-Policy.
var plainAddress = regexp.MustCompile(`^(\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+):[0-9]{1,5}$`)

// defaultPort is the end of an address that a browser leaves out of an origin.
var defaultPort = map[string]*regexp.Regexp{
	"http": regexp.MustCompile(`:80$`), "https": regexp.MustCompile(`:443$`),
}

// memberOrigins returns the origins of all members' pages, for the scheme of a request, in order.
func (s *Server) memberOrigins(r *http.Request) (origins []string) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	ids := []cluster.NodeID{s.deps.Node.ID}
	for _, m := range s.reads.View().Members() {
		if !m.Removed {
			ids = append(ids, m.ID)
		}
	}
	for _, sv := range s.reads.Status().Servers { // before the first records
		ids = append(ids, sv.ID)
	}
	for _, id := range ids {
		for _, addr := range namesOf(s.httpAddress(id)) {
			origins = append(origins, scheme+"://"+defaultPort[scheme].ReplaceAllString(addr, ""))
		}
	}
	slices.Sort(origins)
	return slices.Compact(origins)
}

// namesOf returns an address as people may type it in a browser: a loopback address also as localhost, and localhost
// also as 127.0.0.1. It is empty for an address that is not plain.
func namesOf(addr string) []string {
	if !plainAddress.MatchString(addr) {
		return nil
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil
	}
	switch ip, err := netip.ParseAddr(host); {
	case err == nil && ip.IsLoopback():
		return []string{addr, net.JoinHostPort("localhost", port)}
	case host == "localhost":
		return []string{addr, net.JoinHostPort("127.0.0.1", port)}
	}
	return []string{addr}
}

// allowMemberPage names the origin of a request in its response if that is the page of a member, and reports whether
// the request asks only for that (a preflight request). It must be called before authorize.
func (c *request) allowMemberPage() (preflight bool) {
	origin := c.r.Header.Get("Origin")
	if origin == "" || !slices.Contains(c.s.memberOrigins(c.r), origin) {
		return false
	}
	c.memberPage = true
	h := c.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Credentials", "true") // client certificates; there are no cookies
	h.Set("Access-Control-Expose-Headers", "ETag, X-Northstar-Revision")
	h.Add("Vary", "Origin")
	if c.r.Method != http.MethodOptions || c.r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE")
	h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, If-Match, If-None-Match")
	h.Set("Access-Control-Max-Age", "600")
	c.WriteHeader(http.StatusNoContent)
	return true
}
