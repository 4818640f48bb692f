package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
)

// Resolver looks up names. *net.Resolver is one.
type Resolver interface {
	LookupHost(ctx context.Context, host string) ([]string, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

// maxDiscovered limits the addresses of one look-up.
const maxDiscovered = 64

// discovery is a DNS name that has the HTTP addresses of a running cluster.
type discovery struct {
	name string
	port string // "" with SRV records, which name the port
}

// parseDiscover reads dns://NAME[:PORT] and dns+srv://NAME. Without a port, peers are expected on the same HTTP
// port as this node.
func parseDiscover(s, ownHTTP string) (discovery, error) {
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return discovery{}, errors.New("want dns://NAME[:PORT] or dns+srv://NAME")
	}
	switch u.Scheme {
	case "dns":
		port := u.Port()
		if port == "" {
			_, port, _ = net.SplitHostPort(ownHTTP)
		}
		return discovery{name: u.Hostname(), port: port}, nil
	case "dns+srv":
		if u.Port() != "" {
			return discovery{}, errors.New("the port comes from the SRV records: leave it out")
		}
		return discovery{name: u.Hostname()}, nil
	}
	return discovery{}, fmt.Errorf("scheme %q: want dns:// or dns+srv://", u.Scheme)
}

// lookUp returns the addresses that DNS has now.
func (d discovery) lookUp(ctx context.Context, r Resolver) ([]string, error) {
	var addresses []string
	if d.port != "" {
		hosts, err := r.LookupHost(ctx, d.name)
		if err != nil {
			return nil, err
		}
		for _, h := range hosts {
			addresses = append(addresses, net.JoinHostPort(h, d.port))
		}
	} else {
		_, records, err := r.LookupSRV(ctx, "", "", d.name)
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			addresses = append(addresses, net.JoinHostPort(strings.TrimSuffix(rec.Target, "."),
				strconv.Itoa(int(rec.Port))))
		}
	}
	return addresses[:min(len(addresses), maxDiscovered)], nil
}
