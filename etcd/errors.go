package etcd

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"northstar/cluster"
	"northstar/state"
)

// Errors of this server that etcd does not have.
var (
	errUnhealthy = rpctypes.ErrGRPCUnhealthy
	errBadKey    = status.Error(codes.InvalidArgument, "etcdserver: NorthStar's keys are UTF-8 of at most 4096 bytes")
)

// refusals are the statuses of what the state refuses.
var refusals = map[state.Refusal]error{
	state.LeaseNotFound:     rpctypes.ErrGRPCLeaseNotFound,
	state.LeaseExists:       rpctypes.ErrGRPCLeaseExist,
	state.LeaseTTLTooLarge:  rpctypes.ErrGRPCLeaseTTLTooLarge,
	state.KeyNotFound:       rpctypes.ErrGRPCKeyNotFound,
	state.DuplicateKey:      rpctypes.ErrGRPCDuplicateKey,
	state.TooManyOps:        rpctypes.ErrGRPCTooManyOps,
	state.RequestTooLarge:   rpctypes.ErrGRPCRequestTooLarge,
	state.EmptyKey:          rpctypes.ErrGRPCEmptyKey,
	state.ValueProvided:     rpctypes.ErrGRPCValueProvided,
	state.LeaseProvided:     rpctypes.ErrGRPCLeaseProvided,
	state.InvalidSortOption: rpctypes.ErrGRPCInvalidSortOption,
	state.Compacted:         rpctypes.ErrGRPCCompacted,
	state.FutureRevision:    rpctypes.ErrGRPCFutureRev,
	state.InvalidKey:        errBadKey,
	state.LeaseNotOwned:     rpctypes.ErrGRPCPermissionDenied,
}

// unsupported is the answer to a call that NorthStar does not serve.
func unsupported(what string) error {
	return status.Error(codes.Unimplemented, "etcdserver: not supported by NorthStar: "+what)
}

// statusOf returns an error as etcd clients expect it: they compare code and text. Errors with a status stay as they
// are.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	var e *cluster.Error
	var refusal state.Refusal
	switch {
	case errors.As(err, &refusal) && refusals[refusal] != nil:
		return refusals[refusal]
	case errors.As(err, &e):
		return statusOfCode(e)
	case errors.Is(err, context.Canceled):
		return rpctypes.ErrGRPCCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return rpctypes.ErrGRPCDeadlineExceeded
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unknown, err.Error())
}

// statusOfCode returns the status of one of this cluster's errors.
func statusOfCode(e *cluster.Error) error {
	switch e.Code {
	case cluster.CodeNoLeader:
		return rpctypes.ErrGRPCNoLeader
	case cluster.CodeBusy:
		return rpctypes.ErrGRPCRequestTooManyRequests
	case cluster.CodeOutcomeUnknown:
		if errors.Is(e, context.DeadlineExceeded) || errors.Is(e, context.Canceled) {
			return rpctypes.ErrGRPCTimeout
		}
		return rpctypes.ErrGRPCTimeoutDueToLeaderFail
	case cluster.CodeReadOnly, cluster.CodeQuotaExceeded:
		if e.DiskStalls() {
			return rpctypes.ErrGRPCTimeout // as etcd's own: clients take the outcome for unknown
		}
		return rpctypes.ErrGRPCNoSpace
	case cluster.CodeSplitBrain, cluster.CodeTermStale:
		return errUnhealthy
	case cluster.CodeUnauthenticated:
		return rpctypes.ErrGRPCInvalidAuthToken
	case cluster.CodeForbidden:
		return rpctypes.ErrGRPCPermissionDenied
	case cluster.CodeSessionEnded:
		return rpctypes.ErrGRPCLeaseNotFound
	case cluster.CodeHistoryCompacted:
		return rpctypes.ErrGRPCCompacted
	case cluster.CodeTransferFailed:
		if e.HTTPStatus() == http.StatusGatewayTimeout {
			return rpctypes.ErrGRPCTimeout
		}
		return status.Error(codes.FailedPrecondition, "etcdserver: "+e.Detail)
	case cluster.CodeBadRequest, cluster.CodeNotFound:
		return statusOfBadRequest(e)
	}
	return status.Error(codes.Unknown, e.Detail)
}

// callError returns the error with which a call ends for its audit record, metrics and trace: one of this cluster's
// errors, or one made from what etcd clients get.
func callError(err error) error {
	if e := (*cluster.Error)(nil); err == nil || errors.As(err, &e) {
		return err
	}
	st := status.Convert(statusOf(err))
	code := cluster.CodeBadRequest
	switch st.Code() {
	case codes.PermissionDenied:
		code = cluster.CodeForbidden
	case codes.Unauthenticated:
		code = cluster.CodeUnauthenticated
	case codes.ResourceExhausted:
		code = cluster.CodeBusy
	case codes.Unavailable:
		code = cluster.CodeNoLeader
	case codes.Unknown, codes.Internal:
		code = cluster.CodeInternal
	}
	return &cluster.Error{Code: code, Status: httpStatus(st.Code()), Detail: st.Message(), Err: err}
}

func statusOfBadRequest(e *cluster.Error) error {
	switch e.HTTPStatus() {
	case http.StatusRequestEntityTooLarge:
		return rpctypes.ErrGRPCRequestTooLarge
	case http.StatusNotFound:
		return status.Error(codes.NotFound, "etcdserver: "+e.Detail)
	case http.StatusConflict: // a member cannot read the command yet
		return status.Error(codes.FailedPrecondition, "etcdserver: "+e.Detail)
	}
	return status.Error(codes.InvalidArgument, "etcdserver: "+e.Detail)
}

// httpStatus returns the HTTP status of a gRPC code, as etcd's gateway does.
func httpStatus(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return 499 // the client closed the request
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// endHTTPConn has the connection end with the answer if its certificate is not that of a caller: the client may have
// renewed it, and shows the new one only in another handshake.
func endHTTPConn(w http.ResponseWriter, r *http.Request, code codes.Code) {
	if code == codes.Unauthenticated && r != nil && r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		w.Header().Set("Connection", "close")
	}
}

// maxErrorText bounds the text of an error that may repeat what the client has sent: that can have megabytes.
const maxErrorText = 512

func short(text string) string {
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "…"
}
