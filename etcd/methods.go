package etcd

import (
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"

	"northstar/api/openapi"
	"northstar/api/token"
)

// method is one RPC that this server serves. The role checks, the limits and the JSON gateway are made from the table.
type method struct {
	name  string // full name in gRPC
	paths []string
	role  token.Role
	kind  openapi.ResponseKind
	write bool // it may change something: recorded in the audit log if its role is operator

	service any // implementation, set by New
	desc    *grpc.ServiceDesc
}

// methods returns the table.
func methods() []method {
	kv := func(path string) []string { return []string{"/v3/kv/" + path} }
	lease := func(path string) []string { return []string{"/v3/lease/" + path, "/v3/kv/lease/" + path} }
	return []method{
		{name: pb.KV_Range_FullMethodName, paths: kv("range"), role: token.Observer},
		{name: pb.KV_Put_FullMethodName, paths: kv("put"), role: token.Client, write: true},
		{name: pb.KV_DeleteRange_FullMethodName, paths: kv("deleterange"), role: token.Client, write: true},
		{name: pb.KV_Txn_FullMethodName, paths: kv("txn"), role: token.Client, write: true},
		{name: pb.KV_Compact_FullMethodName, paths: kv("compaction"), role: token.Operator, write: true},
		{name: pb.Watch_Watch_FullMethodName, paths: []string{"/v3/watch"}, role: token.Observer, kind: openapi.Stream},
		{name: pb.Lease_LeaseGrant_FullMethodName, paths: []string{"/v3/lease/grant"}, role: token.Client, write: true},
		{name: pb.Lease_LeaseRevoke_FullMethodName, paths: lease("revoke"), role: token.Client, write: true},
		{
			name: pb.Lease_LeaseKeepAlive_FullMethodName, paths: []string{"/v3/lease/keepalive"}, role: token.Client,
			kind: openapi.Stream, write: true,
		},
		{name: pb.Lease_LeaseTimeToLive_FullMethodName, paths: lease("timetolive"), role: token.Observer},
		{name: pb.Lease_LeaseLeases_FullMethodName, paths: lease("leases"), role: token.Observer},
		{name: pb.Cluster_MemberList_FullMethodName, paths: []string{"/v3/cluster/member/list"}, role: token.Observer},
		{name: pb.Maintenance_Status_FullMethodName, paths: []string{"/v3/maintenance/status"}, role: token.Observer},
		{name: pb.Maintenance_Alarm_FullMethodName, paths: []string{"/v3/maintenance/alarm"}, role: token.Observer},
		{
			name: pb.Maintenance_Defragment_FullMethodName, paths: []string{"/v3/maintenance/defragment"},
			role: token.Operator, write: true,
		},
		{
			name: pb.Maintenance_MoveLeader_FullMethodName, paths: []string{"/v3/maintenance/transfer-leadership"},
			role: token.Operator, write: true,
		},
		{name: pb.Auth_Authenticate_FullMethodName, paths: []string{"/v3/auth/authenticate"}, role: token.None},
		{name: pb.Auth_AuthStatus_FullMethodName, paths: []string{"/v3/auth/status"}, role: token.Observer},
		recipe("v3lockpb.Lock/Lock", "lock/lock", token.Client, openapi.LongPoll),
		recipe("v3lockpb.Lock/Unlock", "lock/unlock", token.Client, openapi.Unary),
		recipe("v3electionpb.Election/Campaign", "election/campaign", token.Client, openapi.LongPoll),
		recipe("v3electionpb.Election/Proclaim", "election/proclaim", token.Client, openapi.Unary),
		recipe("v3electionpb.Election/Leader", "election/leader", token.Observer, openapi.Unary),
		recipe("v3electionpb.Election/Observe", "election/observe", token.Observer, openapi.Stream),
		recipe("v3electionpb.Election/Resign", "election/resign", token.Client, openapi.Unary),
	}
}

// recipe returns a method of Lock or Election.
func recipe(name, path string, role token.Role, kind openapi.ResponseKind) method {
	return method{
		name: "/" + name, paths: []string{"/v3/" + path}, role: role, kind: kind, write: role == token.Client,
	}
}

// unsupportedPaths returns the paths of etcd's gateway whose methods are not in the table, with those methods.
func unsupportedPaths() map[string]string {
	return map[string]string{
		"/v3/auth/disable":           pb.Auth_AuthDisable_FullMethodName,
		"/v3/auth/enable":            pb.Auth_AuthEnable_FullMethodName,
		"/v3/auth/role/add":          pb.Auth_RoleAdd_FullMethodName,
		"/v3/auth/role/delete":       pb.Auth_RoleDelete_FullMethodName,
		"/v3/auth/role/get":          pb.Auth_RoleGet_FullMethodName,
		"/v3/auth/role/grant":        pb.Auth_RoleGrantPermission_FullMethodName,
		"/v3/auth/role/list":         pb.Auth_RoleList_FullMethodName,
		"/v3/auth/role/revoke":       pb.Auth_RoleRevokePermission_FullMethodName,
		"/v3/auth/user/add":          pb.Auth_UserAdd_FullMethodName,
		"/v3/auth/user/changepw":     pb.Auth_UserChangePassword_FullMethodName,
		"/v3/auth/user/delete":       pb.Auth_UserDelete_FullMethodName,
		"/v3/auth/user/get":          pb.Auth_UserGet_FullMethodName,
		"/v3/auth/user/grant":        pb.Auth_UserGrantRole_FullMethodName,
		"/v3/auth/user/list":         pb.Auth_UserList_FullMethodName,
		"/v3/auth/user/revoke":       pb.Auth_UserRevokeRole_FullMethodName,
		"/v3/cluster/member/add":     pb.Cluster_MemberAdd_FullMethodName,
		"/v3/cluster/member/promote": pb.Cluster_MemberPromote_FullMethodName,
		"/v3/cluster/member/remove":  pb.Cluster_MemberRemove_FullMethodName,
		"/v3/cluster/member/update":  pb.Cluster_MemberUpdate_FullMethodName,
		"/v3/maintenance/downgrade":  pb.Maintenance_Downgrade_FullMethodName,
		"/v3/maintenance/hash":       pb.Maintenance_Hash_FullMethodName,
		"/v3/maintenance/hashkv":     pb.Maintenance_HashKV_FullMethodName,
		"/v3/maintenance/snapshot":   pb.Maintenance_Snapshot_FullMethodName,
	}
}

// unsupportedReason returns what to say about a method of etcd that is not in the table.
func unsupportedReason(name string) string {
	service, rpc, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	switch _, service, _ = strings.Cut(service, "."); {
	case service == "Cluster":
		return rpc + ": use northstarctl members"
	case service == "Auth":
		return rpc + ": users and roles are the tokens and certificates of NorthStar"
	case rpc == "Snapshot":
		return rpc + ": use northstarctl snapshot save"
	}
	return rpc
}

// describe finds a full method name in the service descriptions: one of them is nil.
func describe(d *grpc.ServiceDesc, name string) (*grpc.MethodDesc, *grpc.StreamDesc) {
	short := strings.TrimPrefix(name, "/"+d.ServiceName+"/")
	if i := slices.IndexFunc(d.Methods, func(m grpc.MethodDesc) bool { return m.MethodName == short }); i >= 0 {
		return &d.Methods[i], nil
	}
	if i := slices.IndexFunc(d.Streams, func(m grpc.StreamDesc) bool { return m.StreamName == short }); i >= 0 {
		return nil, &d.Streams[i]
	}
	return nil, nil
}
