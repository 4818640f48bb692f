package main

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"northstar/api/apiv1"
	"northstar/api/token"
	"northstar/state"
)

func must(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := ctl(t, nil, "", args...)
	if code != exitDone {
		t.Fatalf("%q: exit %d: %s", args, code, stderr)
	}
	return stdout
}

func readCert(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func TestCertificates(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	must(t, "tls", "ca", "--out", dir)
	must(t, "tls", "cert", "--ca", dir, "--out", dir, "--node", "n1", "--cluster-name", "demo", "--host",
		"n1.example.org",
		"--host", "10.0.0.1,::1")
	must(t, "tls", "cert", "--ca", dir, "--out", dir, "--client", "operator/ann", "--cluster-name", "demo", "--days",
		"30")
	roots := x509.NewCertPool()
	roots.AddCert(readCert(t, filepath.Join(dir, "ca.crt")))

	for _, tc := range []struct {
		file, uri string
		usages    []x509.ExtKeyUsage
		host      string
		life      time.Duration
	}{
		{"n1", "northstar://demo/node/n1", []x509.ExtKeyUsage{
			x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth,
		}, "n1.example.org", 365 * day},
		{"ann", "northstar://demo/operator/ann", []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, "", 30 * day},
	} {
		cert := readCert(t, filepath.Join(dir, tc.file+".crt"))
		for _, usage := range tc.usages {
			if _, err := cert.Verify(
				x509.VerifyOptions{Roots: roots, DNSName: tc.host, KeyUsages: []x509.ExtKeyUsage{usage}},
			); err != nil {
				t.Errorf("%s: %v", tc.file, err)
			}
		}
		if !slices.Equal(cert.ExtKeyUsage, tc.usages) || cert.IsCA || len(cert.URIs) != 1 ||
			cert.URIs[0].String() != tc.uri {
			t.Errorf("%s: usages %v, CA %v, URIs %v", tc.file, cert.ExtKeyUsage, cert.IsCA, cert.URIs)
		}
		if life := cert.NotAfter.Sub(cert.NotBefore); life < tc.life || life > tc.life+time.Hour {
			t.Errorf("%s lives for %v", tc.file, life)
		}
		if _, err := tls.LoadX509KeyPair(filepath.Join(dir, tc.file+".crt"),
			filepath.Join(dir, tc.file+".key")); err != nil {
			t.Error(err)
		}
	}
	n1 := readCert(t, filepath.Join(dir, "n1.crt"))
	for _, host := range []string{"10.0.0.1", "::1"} {
		if err := n1.VerifyHostname(host); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"ca.key", "n1.key", "ann.key"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, st.Mode(), err)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCertificates_NotOverwritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, "tls", "ca", "--out", dir)
	before := readCert(t, filepath.Join(dir, "ca.crt"))
	if code, _, stderr := ctl(t, nil, "", "tls", "ca", "--out", dir); code != exitFailed ||
		!strings.Contains(stderr, "--force") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	if !readCert(t, filepath.Join(dir, "ca.crt")).Equal(before) {
		t.Error("the CA was replaced")
	}
	must(t, "tls", "ca", "--out", dir, "--force")
	if readCert(t, filepath.Join(dir, "ca.crt")).Equal(before) {
		t.Error("the CA was not replaced")
	}
	for name, args := range map[string]string{
		"a node without a host": "--node n2 --cluster-name demo",
		"port in the cluster":   "--node n2 --cluster-name eu:prod --host h",
		"user in the cluster":   "--node n2 --cluster-name a@b --host h",
		"cluster with a dot":    "--node n2 --cluster-name eu. --host h",
		"bad node":              "--node N2 --cluster-name demo --host h",
		"bad role":              "--client node/n2 --cluster-name demo",
		"no name":               "--client operator --cluster-name demo",
		"bad host":              "--node n2 --cluster-name demo --host h:7701",
		"bad cluster":           "--node n2 --cluster-name a/b --host h",
		"both":                  "--node n2 --client operator/a --cluster-name demo --host h",
		"neither":               "--cluster-name demo --host h",
		"the CA's name":         "--node ca --cluster-name demo --host h",
	} {
		all := append([]string{"tls", "cert", "--ca", dir, "--out", dir}, strings.Fields(args)...)
		if code, _, _ := ctl(t, nil, "", all...); code != exitUsage {
			t.Errorf("%s: exit %d, want %d", name, code, exitUsage)
		}
	}
}

// A certificate and its key are replaced together: one of them alone would keep a node from starting.
func TestWriteFiles_AllOrNone(t *testing.T) {
	t.Parallel()
	fill := func(text string, err error) func(*os.File) error {
		return func(f *os.File) error { _, werr := f.WriteString(text); return errors.Join(werr, err) }
	}
	full := errors.New("disk full")
	for name, tc := range map[string]struct {
		first, second error
		dir           string // is a directory
		replaced      bool
	}{
		"both":                            {replaced: true},
		"the first cannot be written":     {first: full},
		"the second cannot be written":    {second: full},
		"the first must not be replaced":  {dir: "n1.key"},
		"the second must not be replaced": {dir: "n1.crt"},
	} {
		dir := t.TempDir()
		files := []string{filepath.Join(dir, "n1.key"), filepath.Join(dir, "n1.crt")}
		for _, f := range files {
			if filepath.Base(f) == tc.dir {
				if err := os.Mkdir(f, 0o700); err != nil {
					t.Fatal(err)
				}
			} else if err := os.WriteFile(f, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		err := writeFiles(newFile{files[0], 0o600, fill("new", tc.first)},
			newFile{files[1], 0o644, fill("new", tc.second)})
		if (err == nil) != tc.replaced {
			t.Errorf("%s: %v", name, err)
		}
		want := "old"
		if tc.replaced {
			want = "new"
		}
		for _, f := range files {
			if got, err := os.ReadFile(f); filepath.Base(f) != tc.dir && (err != nil || string(got) != want) {
				t.Errorf("%s: %s has %q, want %q, %v", name, f, got, want, err)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
			t.Errorf("%s: left behind: %v", name, left)
		}
	}
}

// The same with the command: without a certificate the key stays.
func TestCertificates_ReplacedTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, "tls", "ca", "--out", dir)
	renew := []string{
		"tls", "cert", "--ca", dir, "--out", dir, "--node", "n1", "--cluster-name", "demo", "--host", "h", "--force",
	}
	must(t, renew...)
	crt, key := filepath.Join(dir, "n1.crt"), filepath.Join(dir, "n1.key")
	before, err := os.ReadFile(key)
	if err = errors.Join(err, os.Remove(crt), os.Mkdir(crt, 0o700)); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := ctl(t, nil, "", renew...); code != exitFailed {
		t.Errorf("exit %d", code)
	}
	if now, err := os.ReadFile(key); err != nil || string(now) != string(before) {
		t.Errorf("the key was replaced alone: %v", err)
	}
}

func TestTokenNew(t *testing.T) {
	t.Parallel()
	var out struct{ Token, Hash string }
	line := must(t, "token", "new", "--name", "ann", "--role", "client")
	if err := json.Unmarshal([]byte(line), &out); err != nil {
		t.Fatal(err)
	}
	set, err := token.ParseFile([]byte("[[token]]\nname=\"ann\"\nrole=\"client\"\nhash=\"" + out.Hash + "\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := set.Find(out.Token); !ok || e.Role != token.Client {
		t.Errorf("the token is not found by its hash: %+v", e)
	}
}

// backup returns a small state as a node sends it.
func backup(t *testing.T) []byte {
	t.Helper()
	s := state.New(state.Options{})
	s.Apply(1, 1, []state.Command{{Kind: state.KindPut, Now: 1, Put: &state.Put{Key: "k", Value: []byte("v")}}})
	var b strings.Builder
	if _, err := s.Snapshot().WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return []byte(b.String())
}

func TestSnapshots(t *testing.T) {
	t.Parallel()
	data := backup(t)
	sent := data
	var restored string
	s := newServer(t)
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case apiv1.PathLeader:
			reply(w,
				apiv1.Leader{
					LeaderID: "n1", LeaderAddress: strings.TrimPrefix(s.URL, "http://"), ObservedBy: "n1",
					Term: 1,
				})
		case apiv1.PathSnapshot:
			w.Header().Set("Trailer", apiv1.HeaderChecksum)
			w.Write(sent)
			sum := sha256.Sum256(sent)
			w.Header().Set(apiv1.HeaderChecksum, "sha256:"+hex.EncodeToString(sum[:]))
		case apiv1.PathRestore:
			var b strings.Builder
			http.MaxBytesReader(w, r.Body, 1<<20).Read(nil)
			buf := make([]byte, 1<<16)
			for {
				n, err := r.Body.Read(buf)
				b.Write(buf[:n])
				if err != nil {
					break
				}
			}
			restored = b.String()
			reply(w, apiv1.RestoreResult{Revision: 9, Message: "1 key"})
		default:
			http.NotFound(w, r)
		}
	})
	dir := t.TempDir()
	file := filepath.Join(dir, "b.snap")
	code, stdout, stderr := ctl(t, s, "", "snapshot", "save", file)
	if got, err := os.ReadFile(file); code != exitDone ||
		err != nil || string(got) != string(data) || !strings.Contains(stdout, "keys") {
		t.Fatalf("save: exit %d, %v, %s", code, err, stderr)
	}
	if code, _, _ := ctl(t, s, "", "snapshot", "save", file); code != exitFailed {
		t.Errorf("an existing file was replaced: exit %d", code)
	}
	var info state.Info
	if err := json.Unmarshal([]byte(must(t, "snapshot", "inspect", file, "-o", "json")), &info); err != nil ||
		info.Keys != 1 {
		t.Errorf("inspect: %+v, %v", info, err)
	}

	// A damaged transfer leaves only the old backup.
	sent = append(slices.Clone(data), 'x')
	if code, _, stderr := ctl(t, s, "", "snapshot", "save", "--force", file); code != exitFailed {
		t.Errorf("damaged backup saved: exit %d, %s", code, stderr)
	}
	if got, _ := os.ReadFile(file); string(got) != string(data) {
		t.Error("the old backup was removed")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}

	if code, _, _ := ctl(t, s, "n\n", "snapshot", "restore", file); code != exitFailed || restored != "" {
		t.Errorf("restored without a yes: exit %d", code)
	}
	contexts := filepath.Join(t.TempDir(), "contexts.toml")
	must(t, "context", "set", "prod", "--endpoints", "10.9.9.9:7701", "--context-file", contexts)
	if _, _, stderr := ctl(t, nil, "n\n", "snapshot", "restore", file, "--context", "prod", "--context-file",
		contexts); !strings.Contains(stderr, "cluster at 10.9.9.9:7701 will be replaced") {
		t.Errorf("the question names another cluster than the context: %s", stderr)
	}
	if code, stdout, stderr := ctl(t, s, "y\n", "snapshot", "restore", file); code != exitDone ||
		restored != string(data) || !strings.Contains(stdout, "revision 9") {
		t.Errorf("restore: exit %d, %d bytes, %s%s", code, len(restored), stdout, stderr)
	}
	restored = ""
	if err := os.WriteFile(file, data[:len(data)-3], 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := ctl(t, s, "", "--yes", "snapshot", "restore", file); code != exitFailed || restored != "" {
		t.Errorf("a damaged file was sent: exit %d", code)
	}
}

func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script := must(t, "completion", shell)
		for _, word := range []string{"snapshot", "inspect", "if-revision", "no-eligible"} {
			if !strings.Contains(script, word) {
				t.Errorf("%s: no %q in the script", shell, word)
			}
		}
		if path, err := exec.LookPath(shell); err == nil {
			cmd := exec.Command(path, "-n")
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v\n%s", shell, err, out)
			}
		}
	}
}

func TestBashCompletion(t *testing.T) {
	t.Parallel()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed")
	}
	script := must(t, "completion", "bash")
	for line, want := range map[string]string{
		"sna":                        "snapshot",
		"--token x kv ":              "get put del ls watch",
		"kv --endpoints kv put --if": "--if-revision --if-present --if-absent",
		"-o ":                        "table json yaml",
		"completion ":                "bash zsh fish",
		"kv get kv":                  "",
		"members set n1 --no":        "--no-eligible",
		"nodes --sta":                "--status", // of its default command
		"nodes show --sta":           "",
		"status --output = y":        "yaml",
		"status --output =":          "table json yaml",
		"--output = json kv p":       "put",
		"events --type el":           "election",
	} {
		words := append([]string{"northstarctl"}, strings.Split(line, " ")...)
		quoted := make([]string, len(words))
		for i, w := range words {
			quoted[i] = "'" + w + "'"
		}
		cmd := exec.Command(bash, "--norc", "-c", script+"\nCOMP_WORDS=("+strings.Join(quoted,
			" ")+"); COMP_CWORD=$((${#COMP_WORDS[@]}-1)); _northstarctl; echo ${COMPREPLY[@]}")
		out, err := cmd.CombinedOutput()
		got := strings.Fields(string(out))
		slices.Sort(got)
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if err != nil || !slices.Equal(got, wanted) {
			t.Errorf("%q: %q, %v, want %q", line, got, err, wanted)
		}
	}
}

func TestFishCompletion(t *testing.T) {
	t.Parallel()
	fish, err := exec.LookPath("fish")
	if err != nil {
		t.Skip("fish is not installed")
	}
	script := filepath.Join(t.TempDir(), "northstarctl.fish")
	if err := os.WriteFile(script, []byte(must(t, "completion", "fish")), 0o600); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"sna":                        "snapshot",
		"--token x kv ":              "get put del ls watch",
		"kv --endpoints kv put --if": "--if-revision --if-present --if-absent",
		"status -o ":                 "table json yaml",
		"status --output=":           "--output=table --output=json --output=yaml",
		"members set n1 --no":        "--no-eligible",
		"events --type el":           "election",
	} {
		cmd := exec.Command(fish, "--no-config", "-c", `source $argv[1]; complete -C "northstarctl $argv[2]"`, script, line)
		out, err := cmd.CombinedOutput()
		var got []string
		for text := range strings.Lines(string(out)) {
			word, _, _ := strings.Cut(strings.TrimSpace(text), "\t")
			got = append(got, word)
		}
		slices.Sort(got)
		wanted := strings.Fields(want)
		slices.Sort(wanted)
		if err != nil || !slices.Equal(got, wanted) {
			t.Errorf("%q: %q, %v, want %q", line, got, err, wanted)
		}
	}
}
