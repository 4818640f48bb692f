package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"northstar/cluster"
)

// clusterService implements the part of etcd's Cluster service that reads.
type clusterService struct {
	pb.UnimplementedClusterServer
	s *Server
}

// MemberList returns the members with the URLs of their etcd ports.
func (c *clusterService) MemberList(ctx context.Context, r *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	v, err := c.s.readView(ctx, !r.Linearizable)
	if err != nil {
		return nil, err
	}
	out := &pb.MemberListResponse{Header: c.s.memberHeader()}
	for _, server := range c.s.deps.Node.Status().Servers {
		m := &pb.Member{
			ID: memberID(v.ClusterID(), server.ID), Name: string(server.ID),
			PeerURLs:  []string{peerURL(server.Address)},
			IsLearner: server.Suffrage != cluster.Voter, ClientURLs: []string{},
		}
		if u := c.s.deps.ClientURL(server.ID); u != "" {
			m.ClientURLs = append(m.ClientURLs, u)
		}
		out.Members = append(out.Members, m)
	}
	return out, nil
}

// peerURL returns a Raft address in the form of etcd's peer URLs: no etcd client connects to it.
func peerURL(address string) string { return "http://" + address }

// maintenanceService implements the part of etcd's Maintenance service that monitoring and operators use.
type maintenanceService struct {
	pb.UnimplementedMaintenanceServer
	s *Server
}

// Status returns the status of this node.
func (m *maintenanceService) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	st, v := m.s.deps.Node.Status(), m.s.deps.Node.View()
	out := &pb.StatusResponse{
		Header: m.s.header(v), Version: serverVersion, DbSize: v.StateBytes(), DbSizeInUse: v.StateBytes(),
		RaftTerm: st.Term, RaftIndex: st.CommitIndex, RaftAppliedIndex: st.AppliedIndex, StorageVersion: clusterVersion,
		DbSizeQuota: int64(v.Limits().StateBytes), DowngradeInfo: &pb.DowngradeInfo{}, // etcdctl 3.6 prints both
	}
	if st.LeaderID != "" {
		out.Leader = memberID(v.ClusterID(), st.LeaderID)
	} else {
		out.Errors = append(out.Errors, rpctypes.ErrorDesc(rpctypes.ErrGRPCNoLeader))
	}
	if self, ok := cluster.FindServer(st.Servers, st.NodeID); ok {
		out.IsLearner = self.Suffrage != cluster.Voter
	}
	for _, a := range m.s.alarms(v.ClusterID()) {
		out.Errors = append(out.Errors, fmt.Sprintf("memberID:%d alarm:%v ", a.MemberID, a.Alarm)) // as etcd writes it
	}
	return out, nil
}

// alarms returns the alarms that this node knows of. NorthStar raises and clears them itself.
func (s *Server) alarms(clusterID string) (out []*pb.AlarmMember) {
	for _, id := range s.deps.Node.Full() {
		out = append(out, &pb.AlarmMember{MemberID: memberID(clusterID, id), Alarm: pb.AlarmType_NOSPACE})
	}
	return out
}

// Alarm returns the alarms.
func (m *maintenanceService) Alarm(_ context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action != pb.AlarmRequest_GET {
		return nil, unsupported("Alarm " + strings.ToLower(r.Action.String()) + ": NorthStar raises and clears alarms itself")
	}
	v := m.s.deps.Node.View()
	out := &pb.AlarmResponse{Header: m.s.header(v)}
	if r.Alarm == pb.AlarmType_NONE || r.Alarm == pb.AlarmType_NOSPACE {
		out.Alarms = m.s.alarms(v.ClusterID())
	}
	return out, nil
}

// Defragment has nothing to do: the state is in memory.
func (m *maintenanceService) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return &pb.DefragmentResponse{Header: m.s.header(m.s.deps.Node.View())}, nil
}

// MoveLeader moves leadership to a voter. etcd serves it on the leader only; here every node does.
func (m *maintenanceService) MoveLeader(
	ctx context.Context, r *pb.MoveLeaderRequest,
) (*pb.MoveLeaderResponse, error) {
	v, st := m.s.deps.Node.View(), m.s.deps.Node.Status()
	for _, server := range st.Servers {
		if memberID(v.ClusterID(), server.ID) != r.TargetID || server.Suffrage != cluster.Voter {
			continue
		}
		if server.ID != st.LeaderID { // as in etcd, the leader itself is no error
			if err := callOf(ctx).MoveLeader(ctx, server.ID); err != nil {
				return nil, err
			}
		}
		return &pb.MoveLeaderResponse{Header: m.s.header(m.s.deps.Node.View())}, nil
	}
	return nil, rpctypes.ErrGRPCBadLeaderTransferee
}

// authService implements what clients need of etcd's Auth service. Users are the tokens of NorthStar.
type authService struct {
	pb.UnimplementedAuthServer
	s *Server
}

// AuthStatus reports whether callers need a token.
func (a *authService) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{
		Header: a.s.header(a.s.deps.Node.View()), Enabled: a.s.deps.AuthEnabled(), AuthRevision: 1,
	}, nil
}

// Authenticate checks a name and a token, which is the password, and returns the token: every node accepts it.
func (a *authService) Authenticate(
	ctx context.Context, r *pb.AuthenticateRequest,
) (*pb.AuthenticateResponse, error) {
	if !a.s.deps.AuthEnabled() {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	request, _ := incoming(ctx, pb.Auth_Authenticate_FullMethodName)
	if err := a.s.deps.CheckToken(r.Name, r.Password, request.RemoteAddr); err != nil {
		if cluster.IsCode(err, cluster.CodeUnauthenticated) {
			return nil, rpctypes.ErrGRPCAuthFailed
		}
		return nil, err
	}
	return &pb.AuthenticateResponse{Header: a.s.memberHeader(), Token: r.Password}, nil
}

// serveVersion answers GET /version.
func (s *Server) serveVersion(w http.ResponseWriter, r *http.Request) {
	if onlyGet(w, r) {
		writePlain(w, http.StatusOK, struct {
			Server  string `json:"etcdserver"`
			Cluster string `json:"etcdcluster"`
		}{serverVersion, clusterVersion})
	}
}

// serveHealth answers GET /health: a node is healthy that knows a leader, has caught up and has space for writes. With
// serializable=true it needs no leader, and need not have caught up, which a node cannot without one: a probe that
// restarts nodes may ask so. exclude=NOSPACE leaves out the space.
func (s *Server) serveHealth(w http.ResponseWriter, r *http.Request) {
	if !onlyGet(w, r) {
		return
	}
	answer := struct {
		Health string `json:"health"`
		Reason string `json:"reason"`
	}{Health: "false"}
	query, st := r.URL.Query(), s.deps.Node.Status()
	alone := query.Get("serializable") == "true"
	full := slices.Contains(s.deps.Node.Full(), st.NodeID)
	switch {
	case s.stopping.Err() != nil:
		answer.Reason = "the node is stopping"
	case full && !slices.Contains(query["exclude"], pb.AlarmType_NOSPACE.String()):
		answer.Reason = "ALARM NOSPACE"
	case st.LeaderID == "" && !alone:
		answer.Reason = "RAFT NO LEADER"
	case !alone && st.CheckCaughtUp() != nil:
		answer.Reason = "the node has not caught up since its start"
	default:
		answer.Health = "true"
		writePlain(w, http.StatusOK, answer)
		return
	}
	writePlain(w, http.StatusServiceUnavailable, answer)
}

func onlyGet(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", http.MethodGet)
	http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
	return false
}

func writePlain(w http.ResponseWriter, code int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that is gone needs no answer
}
