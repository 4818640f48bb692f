package compat

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "record the answers of etcd's JSON gateway")

const gatewayFile = "../../../etcd/testdata/gateway.txt"

// TestRecordGateway checks that the recorded answers of the JSON gateway are those of the etcd of this module.
func TestRecordGateway(t *testing.T) {
	addr := startEtcd(t)
	text, err := os.ReadFile(gatewayFile)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "<") {
			continue
		}
		out.WriteString(line)
		if request, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "> "); ok {
			out.WriteString(record(t, addr, request))
		}
	}
	if *update {
		if err := os.WriteFile(gatewayFile, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if out.String() != string(text) {
		t.Error("etcd answers otherwise than recorded: run with -update, and see the difference")
	}
}

var changing = regexp.MustCompile(`"(cluster_id|member_id|raft_term|memberID)":"[0-9]+"`)

// record makes one request and returns the lines of its answer.
func record(t *testing.T, addr, request string) string {
	t.Helper()
	take := 0
	words := strings.SplitN(request, " ", 3)
	method := http.MethodPost
	switch words[0] {
	case "get":
		method, request = http.MethodGet, words[1]
	case "take", "any":
		if _, err := fmt.Sscan(words[1], &take); err != nil {
			t.Fatal(err)
		}
		request = words[2]
	}
	path, body, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: 10 * time.Second}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []string
	documents := json.NewDecoder(resp.Body)
	for take == 0 || len(out) < take {
		var one json.RawMessage
		if err := documents.Decode(&one); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", request, err)
		}
		one = bytes.ReplaceAll(one, []byte("\u00a0"), []byte(" ")) // in protobuf's errors it depends on the build
		var compact bytes.Buffer
		if err := json.Compact(&compact, one); err != nil {
			t.Fatal(err)
		}
		text := changing.ReplaceAllString(compact.String(), `"$1":"N"`)
		out = append(out, fmt.Sprintf("< %d %s\n", resp.StatusCode, text))
	}
	if words[0] == "any" {
		slices.Sort(out)
	}
	return strings.Join(out, "")
}
