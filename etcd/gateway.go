package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"northstar/api/openapi"
	"northstar/api/problem"
	"northstar/cluster"
)

// The JSON gateway maps each HTTP request to one call of the gRPC services, in this process. Paths, field names and
// forms are those of etcd's own gateway, which is grpc-gateway with the same options of protojson.

const (
	maxJSONBody = 4 << 20          // a request of maxRequestBytes in base64, and its field names
	bodyTimeout = 10 * time.Second // to send the body of a call that is no stream
)

var (
	encoder = protojson.MarshalOptions{UseProtoNames: true}
	decoder = protojson.UnmarshalOptions{DiscardUnknown: true}
)

type httpRequestKey struct{}

// ServeHTTP answers the requests of the JSON gateway, /version and /health.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.lifetime))
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/v3beta/"); ok {
		path = "/v3/" + rest
	}
	switch path {
	case "/version":
		s.serveVersion(w, r)
		return
	case "/health":
		s.serveHealth(w, r)
		return
	}
	m, unserved := s.paths[path], s.unsupported[path]
	switch {
	case m == nil && unserved != "" && r.Method == http.MethodPost:
		refuse(w, r, status.Convert(unsupported(unsupportedReason(unserved))))
		return
	case m == nil && unserved == "":
		refuse(w, r, status.New(codes.NotFound, http.StatusText(http.StatusNotFound)))
		return
	case strings.EqualFold(r.Header.Get("Upgrade"), "websocket"): // another protocol is ignored, as of Java's client
		refuse(w, r, status.Convert(unsupported("WebSocket: send the messages in the body of a POST request")))
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		refuse(w, r, status.New(codes.Unimplemented, http.StatusText(http.StatusMethodNotAllowed)))
		return
	}
	ctx := context.WithValue(r.Context(), httpRequestKey{}, r)
	unary, streaming := describe(m.desc, m.name)
	if unary != nil {
		s.serveUnary(ctx, w, r, m, unary.Handler)
		return
	}
	s.serveStream(ctx, w, r, m, streaming)
}

// serveUnary answers a call with one message. The call begins before its body is read: one that is not allowed costs no
// memory.
func (s *Server) serveUnary(
	ctx context.Context, w http.ResponseWriter, r *http.Request, m *method, handle grpc.MethodHandler,
) {
	ctx, leave, err := s.begin(ctx, m.name)
	if err != nil {
		refuse(w, r, status.Convert(statusOf(err)))
		return
	}
	handled := false
	answer := func(ctx context.Context, in any, info *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		handled = true
		s.answering.Add(1)
		return s.answer(ctx, leave, in, info, h)
	}
	give := func() {} // what the body has taken: the call has its message for as long as it takes
	read := func(message any) (err error) {
		give, err = readMessage(ctx, w, r, message)
		return err
	}
	out, err := handle(m.service, ctx, read, answer)
	give()
	if handled {
		defer s.answering.Add(-1)
	} else {
		leave(err)
	}
	if m.kind != openapi.Unary { // it may have waited for long, also for an error
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.lifetime))
	}
	if err != nil {
		refuse(w, r, status.Convert(statusOf(err)))
		return
	}
	out, sent := uncounted(out)
	defer sent()
	body, err := encodeJSON(out)
	if err != nil {
		refuse(w, r, status.New(codes.Internal, err.Error()))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a client that is gone needs no answer
	_ = http.NewResponseController(w).Flush()
}

// readMessage reads the body of a call with one message. give returns what the body has taken of the budget.
func readMessage(ctx context.Context, w http.ResponseWriter, r *http.Request, message any) (give func(), err error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // without support, the connection's own limit counts
	counted := &countedBody{body: http.MaxBytesReader(w, r.Body, maxJSONBody), call: callOf(ctx), room: bodyChunk}
	body, err := readChunks(counted)
	_ = control.SetReadDeadline(time.Time{})
	tooLarge, refused := (*http.MaxBytesError)(nil), (*cluster.Error)(nil)
	switch {
	case errors.As(err, &tooLarge):
		err = status.Error(codes.InvalidArgument, errMessageTooLarge.Error())
	case errors.As(err, &refused):
	case err != nil:
		err = status.Error(codes.InvalidArgument, err.Error())
	default:
		err = decodeJSON(body, message)
	}
	return counted.give, err
}

// serveStream answers a call with a stream in each direction. The body may end before the answers.
func (s *Server) serveStream(
	ctx context.Context, w http.ResponseWriter, r *http.Request, m *method, desc *grpc.StreamDesc,
) {
	control := http.NewResponseController(w)
	_ = control.EnableFullDuplex() // HTTP/1.1 supports it
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{}) // each message has one
	body := &limitedBody{body: r.Body}
	stream := &httpStream{ctx: ctx, w: w, control: control, lifetime: s.lifetime, body: body, in: json.NewDecoder(body)}
	info := &grpc.StreamServerInfo{FullMethod: m.name, IsClientStream: true, IsServerStream: true}
	stream.end(s.interceptStream(m.service, stream, info, desc.Handler))
}

// httpStream is a stream of a gRPC service over one HTTP/1.1 request. One goroutine may receive. It sends nothing after
// its end: the connection may then carry the answer to another request.
type httpStream struct {
	ctx     context.Context
	w       http.ResponseWriter
	control *http.ResponseController
	body    *limitedBody
	in      *json.Decoder // of body

	lifetime time.Duration // of the sending of one message

	mu      sync.Mutex // guards w, control and what follows
	started bool
	ended   bool
}

var errStreamEnded = status.Error(codes.Canceled, "the stream has ended")

// Context implements grpc.ServerStream.
func (h *httpStream) Context() context.Context { return h.ctx }

// limitedBody is the body of a stream. It ends with an error when it has read all that one message may have.
type limitedBody struct {
	body io.Reader
	left int
}

// Read implements io.Reader.
func (l *limitedBody) Read(p []byte) (int, error) {
	if l.left == 0 {
		return 0, errMessageTooLarge
	}
	n, err := l.body.Read(p[:min(len(p), l.left)])
	l.left -= n
	return n, err
}

var errMessageTooLarge = errors.New("etcdserver: request is too large")

// RecvMsg reads the next object of the body. It returns io.EOF when the body has ended.
func (h *httpStream) RecvMsg(m any) error {
	h.body.left = maxStreamMessage
	var object json.RawMessage
	if err := h.in.Decode(&object); err != nil {
		if errors.Is(err, io.EOF) {
			return io.EOF
		}
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return decodeJSON(object, m)
}

// SendMsg sends one object as one chunk: clients exist that take a chunk for a document.
func (h *httpStream) SendMsg(m any) error {
	m, sent := uncounted(m)
	defer sent()
	body, err := encodeJSON(m)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return errStreamEnded
	}
	h.start(http.StatusOK)
	return h.chunk(`{"result":`, body, "}\n")
}

func (h *httpStream) start(code int) {
	if h.started {
		return
	}
	h.started = true
	h.w.Header().Set("Content-Type", "application/json")
	h.w.WriteHeader(code)
}

func (h *httpStream) chunk(head string, body []byte, tail string) error {
	chunk := make([]byte, 0, len(head)+len(body)+len(tail))
	chunk = append(append(append(chunk, head...), body...), tail...)
	_ = h.control.SetWriteDeadline(time.Now().Add(h.lifetime)) // an error shows at the write
	if _, err := h.w.Write(chunk); err != nil {
		return err
	}
	return h.control.Flush()
}

// end ends the stream with the error of its handler, nil if it succeeded. It waits for a message that is being sent.
func (h *httpStream) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if err == nil {
		return
	}
	st := status.Convert(statusOf(err))
	code := httpStatus(st.Code())
	r, _ := h.ctx.Value(httpRequestKey{}).(*http.Request)
	endHTTPConn(h.w, r, st.Code())
	h.start(code)
	body, err := json.Marshal(streamError{
		Code: st.Code(), GRPCCode: st.Code(), HTTPCode: code, HTTPStatus: http.StatusText(code), Message: st.Message(),
	})
	if err == nil {
		_ = h.chunk(`{"error":`, body, "}\n") // the client may be gone
	}
}

// SetHeader, SendHeader and SetTrailer implement grpc.ServerStream: the services set none.
func (h *httpStream) SetHeader(metadata.MD) error  { return nil }
func (h *httpStream) SendHeader(metadata.MD) error { return nil }
func (h *httpStream) SetTrailer(metadata.MD)       {}

// plainError is the answer to a failed call: the form of etcd 3.5, which has every field of later versions.
type plainError struct {
	Error   string     `json:"error"`
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// streamError has the fields of all versions of etcd.
type streamError struct {
	Code       codes.Code `json:"code"`
	GRPCCode   codes.Code `json:"grpc_code"`
	HTTPCode   int        `json:"http_code"`
	HTTPStatus string     `json:"http_status"`
	Message    string     `json:"message"`
}

// refuse answers with an error, and discards what the client still sends.
func refuse(w http.ResponseWriter, r *http.Request, st *status.Status) {
	endHTTPConn(w, r, st.Code())
	writeStatus(w, st)
	problem.DiscardBody(w, r)
}

// writeStatus answers with an error.
func writeStatus(w http.ResponseWriter, st *status.Status) {
	w.Header().Set("Content-Type", "application/json")
	if st.Code() == codes.Unauthenticated {
		w.Header().Set("WWW-Authenticate", st.Message())
	}
	body, err := json.Marshal(plainError{Error: st.Message(), Code: st.Code(), Message: st.Message()})
	if err != nil {
		panic(err) // a struct of strings and numbers can always be encoded
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(httpStatus(st.Code()))
	_, _ = w.Write(body) // a client that is gone needs no answer
}

// decodeJSON reads a message. An empty body is an empty message.
func decodeJSON(body []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return status.Errorf(codes.Internal, "no message: %T", message)
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	var object json.RawMessage // etcd's gateway reads one document, and ignores what follows
	if err := json.NewDecoder(bytes.NewReader(body)).Decode(&object); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if err := decoder.Unmarshal(object, m); err != nil {
		return status.Error(codes.InvalidArgument, short(err.Error()))
	}
	return nil
}

// encodeJSON returns a message without the random spaces of protojson: its form is the same in every build.
func encodeJSON(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, status.Errorf(codes.Internal, "no message: %T", message)
	}
	body, err := encoder.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Grow(len(body))
	if err := json.Compact(&out, body); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
