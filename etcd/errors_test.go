package etcd

import (
	"context"
	"errors"
	"net/http"
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
