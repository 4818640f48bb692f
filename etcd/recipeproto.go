package etcd

import (
	"context"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// The messages of etcd's Lock and Election services are not in its module of messages (api/v3), but in that of its
// server. So they are described here, as in etcd, and have no generated code.

// recipeMethod is one method of Lock or Election.
type recipeMethod struct {
	name, in, out string // of the method and its messages
	call          func(*recipes, context.Context, fields) (fields, error)
	// observe takes the place of call if the method answers with a stream.
	observe func(s *recipes, ctx context.Context, in fields, send func(m any) error) error
}

// recipeService is one of the two services. A message has the fields 1, 2 and so on, each with its name and type.
type recipeService struct {
	pkg, name string
	messages  map[string][]string
	methods   []recipeMethod
}

func recipeServices() []recipeService {
	return []recipeService{
		{
			pkg: "v3lockpb", name: "Lock",
			messages: map[string][]string{
				"LockRequest": {"name bytes", "lease int64"}, "LockResponse": {"header ResponseHeader", "key bytes"},
				"UnlockRequest": {"key bytes"}, "UnlockResponse": {"header ResponseHeader"},
			},
			methods: []recipeMethod{
				{name: "Lock", in: "LockRequest", out: "LockResponse", call: (*recipes).lock},
				{name: "Unlock", in: "UnlockRequest", out: "UnlockResponse", call: (*recipes).unlock},
			},
		},
		{
			pkg: "v3electionpb", name: "Election",
			messages: map[string][]string{
				"CampaignRequest":  {"name bytes", "lease int64", "value bytes"},
				"CampaignResponse": {"header ResponseHeader", "leader LeaderKey"},
				"LeaderKey":        {"name bytes", "key bytes", "rev int64", "lease int64"},
				"LeaderRequest":    {"name bytes"}, "LeaderResponse": {"header ResponseHeader", "kv KeyValue"},
				"ResignRequest": {"leader LeaderKey"}, "ResignResponse": {"header ResponseHeader"},
				"ProclaimRequest":  {"leader LeaderKey", "value bytes"},
				"ProclaimResponse": {"header ResponseHeader"},
			},
			methods: []recipeMethod{
				{name: "Campaign", in: "CampaignRequest", out: "CampaignResponse", call: (*recipes).campaign},
				{name: "Proclaim", in: "ProclaimRequest", out: "ProclaimResponse", call: (*recipes).proclaim},
				{name: "Leader", in: "LeaderRequest", out: "LeaderResponse", call: (*recipes).leader},
				{name: "Observe", in: "LeaderRequest", out: "LeaderResponse", observe: (*recipes).observe},
				{name: "Resign", in: "ResignRequest", out: "ResignResponse", call: (*recipes).resign},
			},
		},
	}
}

// fields is a message of one of the services.
type fields struct{ *dynamicpb.Message }

func (f fields) value(name protoreflect.Name) protoreflect.Value {
	return f.Get(f.Descriptor().Fields().ByName(name))
}

func (f fields) bytes(name protoreflect.Name) []byte { return f.value(name).Bytes() }
func (f fields) int(name protoreflect.Name) int64    { return f.value(name).Int() }

// message returns a field that is a message; ok is false if it is not set.
func (f fields) message(name protoreflect.Name) (m fields, ok bool) {
	m.Message, ok = f.value(name).Message().Interface().(*dynamicpb.Message)
	return m, ok && f.Has(f.Descriptor().Fields().ByName(name))
}

// set sets a field to bytes, an int64 or a message, and returns f.
func (f fields) set(name protoreflect.Name, to any) fields {
	if m, ok := to.(proto.Message); ok {
		to = m.ProtoReflect()
	}
	f.Set(f.Descriptor().Fields().ByName(name), protoreflect.ValueOf(to))
	return f
}

// clear removes the value of a field.
func (f fields) clear(name protoreflect.Name) { f.Clear(f.Descriptor().Fields().ByName(name)) }

// file describes the service and its messages.
func (s *recipeService) file() (protoreflect.FileDescriptor, error) {
	etcdTypes := map[string]protoreflect.Descriptor{
		"ResponseHeader": (&pb.ResponseHeader{}).ProtoReflect().Descriptor(),
		"KeyValue":       (&mvccpb.KeyValue{}).ProtoReflect().Descriptor(),
	}
	file := &descriptorpb.FileDescriptorProto{
		Name: proto.String(s.pkg + ".proto"), Package: proto.String(s.pkg), Syntax: proto.String("proto3"),
	}
	for _, d := range etcdTypes {
		file.Dependency = append(file.Dependency, d.ParentFile().Path())
	}
	for name, list := range s.messages {
		m := &descriptorpb.DescriptorProto{Name: proto.String(name)}
		for i, field := range list {
			name, kind, _ := strings.Cut(field, " ")
			f := &descriptorpb.FieldDescriptorProto{
				Name: proto.String(name), Number: proto.Int32(int32(i + 1)),
				Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}
			switch kind {
			case "bytes":
				f.Type = descriptorpb.FieldDescriptorProto_TYPE_BYTES.Enum()
			case "int64":
				f.Type = descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum()
			default:
				f.Type = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum()
				f.TypeName = proto.String("." + s.pkg + "." + kind)
				if d := etcdTypes[kind]; d != nil {
					f.TypeName = proto.String("." + string(d.FullName()))
				}
			}
			m.Field = append(m.Field, f)
		}
		file.MessageType = append(file.MessageType, m)
	}
	service := &descriptorpb.ServiceDescriptorProto{Name: proto.String(s.name)}
	for i := range s.methods {
		m := &s.methods[i]
		service.Method = append(service.Method, &descriptorpb.MethodDescriptorProto{
			Name: proto.String(m.name), ServerStreaming: proto.Bool(m.observe != nil),
			InputType: proto.String("." + s.pkg + "." + m.in), OutputType: proto.String("." + s.pkg + "." + m.out),
		})
	}
	file.Service = append(file.Service, service)
	return protodesc.NewFile(file, protoregistry.GlobalFiles)
}

// describe returns what gRPC has to know of the service.
func (s *recipeService) describe(file protoreflect.FileDescriptor) *grpc.ServiceDesc {
	out := &grpc.ServiceDesc{ServiceName: s.pkg + "." + s.name, HandlerType: (*any)(nil), Metadata: file.Path()}
	for i := range s.methods {
		m := &s.methods[i]
		in := file.Messages().ByName(protoreflect.Name(m.in))
		if m.observe != nil {
			out.Streams = append(out.Streams, grpc.StreamDesc{
				StreamName: m.name, ServerStreams: true, Handler: m.stream(in),
			})
			continue
		}
		full := "/" + out.ServiceName + "/" + m.name
		out.Methods = append(out.Methods, grpc.MethodDesc{MethodName: m.name, Handler: m.unary(in, full)})
	}
	return out
}

func (m *recipeMethod) unary(in protoreflect.MessageDescriptor, name string) grpc.MethodHandler {
	return func(
		service any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor,
	) (any, error) {
		message := dynamicpb.NewMessage(in)
		if err := decode(message); err != nil {
			return nil, err
		}
		return intercept(ctx, message, &grpc.UnaryServerInfo{Server: service, FullMethod: name},
			func(ctx context.Context, _ any) (any, error) {
				out, err := m.call(service.(*recipes), ctx, fields{message})
				if err != nil {
					return nil, refusalOfLibrary(err)
				}
				return out.Message, nil
			})
	}
}

func (m *recipeMethod) stream(in protoreflect.MessageDescriptor) grpc.StreamHandler {
	return func(service any, stream grpc.ServerStream) error {
		message := dynamicpb.NewMessage(in)
		if err := stream.RecvMsg(message); err != nil {
			return err
		}
		message.SetUnknown(nil) // the stream keeps the message
		return m.observe(service.(*recipes), stream.Context(), fields{message}, stream.SendMsg)
	}
}

// recipeFiles finds descriptions for the reflection service: also those of the recipes, which other packages of the
// process may register for themselves.
type recipeFiles struct{ protoregistry.Files }

// FindFileByPath implements protodesc.Resolver.
func (r *recipeFiles) FindFileByPath(path string) (protoreflect.FileDescriptor, error) {
	if d, err := r.Files.FindFileByPath(path); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindFileByPath(path)
}

// FindDescriptorByName implements protodesc.Resolver.
func (r *recipeFiles) FindDescriptorByName(name protoreflect.FullName) (protoreflect.Descriptor, error) {
	if d, err := r.Files.FindDescriptorByName(name); err == nil {
		return d, nil
	}
	return protoregistry.GlobalFiles.FindDescriptorByName(name)
}
