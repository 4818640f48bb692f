package etcd

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
)

// healthService is gRPC's. That one never forgets a name that a client has watched, and clients choose the names. The
// only name with a status is "", so all other ones are watched as one.
type healthService struct{ *health.Server }

const unknownService = "unknown"

// Watch sends the status of a service, and each change of it.
func (h healthService) Watch(
	in *grpc_health_v1.HealthCheckRequest, stream grpc.ServerStreamingServer[grpc_health_v1.HealthCheckResponse],
) error {
	if in.Service != "" {
		in = &grpc_health_v1.HealthCheckRequest{Service: unknownService}
	}
	return h.Server.Watch(in, stream)
}

// libraryStreams are the streams of gRPC's own services.
var libraryStreams = []string{
	grpc_health_v1.Health_Watch_FullMethodName, reflectionv1.ServerReflection_ServerReflectionInfo_FullMethodName,
	reflectionv1alpha.ServerReflection_ServerReflectionInfo_FullMethodName,
}

// libraryStream is a stream of gRPC's own services, which wait for their clients alone. It ends with its context, and
// receives when its answers were sent: those of reflection have some 40 KB.
type libraryStream struct {
	grpc.ServerStream
	ctx  context.Context
	s    *Server
	link link
}

// RecvMsg implements grpc.ServerStream. After an error the message may still be received.
func (l *libraryStream) RecvMsg(m any) error {
	if err := l.link.awaitSent(l.ctx); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		var err error
		defer func() { // the interceptors recover only in their own goroutine
			received <- l.s.recovered(recover(), "a message of a stream", err)
		}()
		err = l.ServerStream.RecvMsg(m)
	}()
	select {
	case err := <-received:
		return err
	case <-l.ctx.Done():
		return context.Cause(l.ctx)
	}
}
