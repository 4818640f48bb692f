package etcd

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
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
