package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"northstar/cluster"
	"northstar/state"
)

// TestStatusOf: clients decide by these codes and texts whether to retry.
func TestStatusOf(t *testing.T) {
	t.Parallel()
	tooLarge := cluster.Errorf(cluster.CodeBadRequest, "x")
	tooLarge.Status = http.StatusRequestEntityTooLarge
	for _, c := range []struct{ in, want error }{
		{cluster.Errorf(cluster.CodeNoLeader, "x"), rpctypes.ErrGRPCNoLeader},
		{cluster.Errorf(cluster.CodeBusy, "x"), rpctypes.ErrGRPCRequestTooManyRequests},
		{cluster.Errorf(cluster.CodeOutcomeUnknown, "x"), rpctypes.ErrGRPCTimeoutDueToLeaderFail},
		{cluster.Errorf(cluster.CodeOutcomeUnknown, "x: %w", context.DeadlineExceeded), rpctypes.ErrGRPCTimeout},
		{cluster.Errorf(cluster.CodeReadOnly, "x"), rpctypes.ErrGRPCNoSpace},
		{&cluster.Error{Code: cluster.CodeReadOnly, RetryAfter: time.Second}, rpctypes.ErrGRPCTimeout}, // stalled
		{cluster.Errorf(cluster.CodeQuotaExceeded, "x"), rpctypes.ErrGRPCNoSpace},
		{cluster.Errorf(cluster.CodeSplitBrain, "x"), rpctypes.ErrGRPCUnhealthy},
		{cluster.Errorf(cluster.CodeTermStale, "x"), rpctypes.ErrGRPCUnhealthy},
		{cluster.Errorf(cluster.CodeUnauthenticated, "x"), rpctypes.ErrGRPCInvalidAuthToken},
		{cluster.Errorf(cluster.CodeForbidden, "x"), rpctypes.ErrGRPCPermissionDenied},
		{cluster.Errorf(cluster.CodeSessionEnded, "%w", state.LeaseNotFound), rpctypes.ErrGRPCLeaseNotFound},
		{cluster.Errorf(cluster.CodeBadRequest, "%w", state.DuplicateKey), rpctypes.ErrGRPCDuplicateKey},
		{cluster.Errorf(cluster.CodeTransferFailed, "x"), status.Error(codes.FailedPrecondition, "etcdserver: x")},
		{tooLarge, rpctypes.ErrGRPCRequestTooLarge},
		{context.Canceled, rpctypes.ErrGRPCCanceled},
		{context.DeadlineExceeded, rpctypes.ErrGRPCDeadlineExceeded},
		{errors.New("x"), status.Error(codes.Unknown, "x")},
		{rpctypes.ErrGRPCEmptyKey, rpctypes.ErrGRPCEmptyKey},
		{nil, nil},
	} {
		got := statusOf(c.in)
		sameText := rpctypes.ErrorDesc(orNone(got)) == rpctypes.ErrorDesc(orNone(c.want))
		if status.Code(got) != status.Code(c.want) || !sameText {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
	for r := state.LeaseNotFound; r <= state.InvalidKey; r++ {
		if refusals[r] == nil {
			t.Errorf("refusal %d (%v) has no status", r, r)
		}
	}
}

func orNone(err error) error {
	if err == nil {
		return errors.New("")
	}
	return err
}

// The gateway's connection ends with a refusal of its certificate: a client that keeps it would show no other one.
func TestRefusedCertificateEndsTheConnection(t *testing.T) {
	t.Parallel()
	d := testDeps(newFakeNode(t))
	d.Begin = func(context.Context, *http.Request, any, CallKind) (Call, error) {
		return nil, cluster.Errorf(cluster.CodeUnauthenticated, "expired")
	}
	s, _ := serve(t, d, nil)
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, path := range []string{"/v3/kv/put", "/v3/watch"} {
		for _, state := range []*tls.ConnectionState{nil, {}, verified} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader("{}"))
			r.TLS = state
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if got := w.Result().Header.Get("Connection") == "close"; got != (state == verified) || w.Code != 401 {
				t.Errorf("%s with TLS %v: %d %v", path, state != nil, w.Code, w.Header())
			}
		}
	}
}
