package api

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d *discard) Header() http.Header         { return d.h }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }
func (d *discard) WriteHeader(int)             {}

func benchServer(b *testing.B) *Server {
	b.Helper()
	f := newFakeCluster("n1", true)
	f.put("key", string(make([]byte, 256)))
	s, err := New(testDeps(f))
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// What the API itself adds to a request, without net/http.
func BenchmarkGetKey(b *testing.B) {
	s := benchServer(b)
	r := httptest.NewRequest("GET", "http://127.0.0.1/v1/kv/key", nil)
	r.RemoteAddr = "127.0.0.1:5"
	b.ReportAllocs()
	for b.Loop() {
		s.ServeHTTP(&discard{make(http.Header, 8)}, r)
	}
}

func BenchmarkPutKey(b *testing.B) {
	s := benchServer(b)
	value := make([]byte, 256)
	r := httptest.NewRequest("PUT", "http://127.0.0.1/v1/kv/key", bytes.NewReader(value))
	r.RemoteAddr = "127.0.0.1:5"
	b.ReportAllocs()
	for b.Loop() {
		r.Body = io.NopCloser(bytes.NewReader(value))
		s.ServeHTTP(&discard{make(http.Header, 8)}, r)
	}
}
