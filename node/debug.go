package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	"time"
)

// serveDebug serves Go's profiles until ctx ends.
func (n *Node) serveDebug(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{
		Handler: localHost(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10,
	}
	n.log.Info("serving profiles", "address", n.debugListener.Addr().String())
	undo := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer undo()
	if err := server.Serve(n.debugListener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve debug-addr: %w", err)
	}
	return nil
}

// localHost refuses requests for another host name: a page in a browser on this machine must not read profiles by a
// name that leads here.
func localHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.Host) && !loopback(r.Host+":0") {
			http.Error(w, "profiles are served to loopback host names only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
