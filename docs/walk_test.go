package docs_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"northstar/chaos/ports"
)

// walk follows the commands of a page in a directory of its own.
type walk struct {
	dir    string
	env    []string
	blocks []block
}

// newWalk returns the blocks of a page between two headings. The replacements make what is in them fit this machine.
func newWalk(t *testing.T, page, from, to string, replacements ...string) *walk {
	t.Helper()
	_, text, ok := strings.Cut(read(t, page), from)
	if !ok {
		t.Fatalf("%s has no heading %q", page, from)
	}
	if to != "" {
		if text, _, ok = strings.Cut(text, to); !ok {
			t.Fatalf("%s has no heading %q", page, to)
		}
	}
	w := &walk{dir: t.TempDir()}
	w.blocks, _ = document{page, strings.NewReplacer(replacements...).Replace(text)}.code()
	path := filepath.Dir(programPath(t, "northstarctl")) + ":" + filepath.Dir(programPath(t, "northstar-node"))
	// A busy machine must not move leadership while the commands of a page run, once each.
	w.env = append(os.Environ(), "PATH="+w.dir+"/bin:"+path+":"+os.Getenv("PATH"), "WALK="+w.dir,
		"NORTHSTAR_ELECTION_TIMEOUT_MIN=2s", "NORTHSTAR_ELECTION_TIMEOUT_MAX=4s")
	return w
}

// next returns the next block, which must be of this language and contain a text.
func (w *walk) next(t *testing.T, lang, text string) block {
	t.Helper()
	if len(w.blocks) == 0 {
		t.Fatalf("no block is left for %q", text)
	}
	b := w.blocks[0]
	w.blocks = w.blocks[1:]
	if b.lang != lang || !strings.Contains(b.text, text) {
		t.Fatalf("the next block is not of %s with %q:\n%s", lang, text, b.text)
	}
	return b
}

// run runs commands in one shell to their end, and returns what they write to their standard output.
func (w *walk) run(t *testing.T, lines ...string) string {
	t.Helper()
	out, err := w.try(t, lines...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func (w *walk) try(t *testing.T, lines ...string) (string, error) {
	t.Helper()
	script := strings.Join(lines, "\n")
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr, cmd.WaitDelay = w.dir, w.env, &stderr, time.Second
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w in\n%s\n%s%s", err, script, out, stderr.String())
	}
	return string(out), err
}

// start starts a command, and kills it at the end of the test.
func (w *walk) start(t *testing.T, line string) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "exec "+line)
	var log bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = w.dir, w.env, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.4000s", line, log.String())
		}
	})
}

// write writes a file below the directory.
func (w *walk) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode))
	if err != nil {
		t.Fatal(err)
	}
}

// token runs the command that makes a token, and writes tokens.toml as the page shows it.
func (w *walk) token(t *testing.T, command, file string) string {
	t.Helper()
	var made struct{ Token, Hash string }
	lines := strings.Split(strings.TrimSpace(w.run(t, command)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &made); err != nil {
		t.Fatalf("%v: %q", err, lines)
	}
	_, rest, _ := strings.Cut(file, "hash = \"")
	shown, _, _ := strings.Cut(rest, `"`)
	if shown == "" || made.Token == "" || made.Hash == "" {
		t.Fatalf("token %+v, tokens.toml\n%s", made, file)
	}
	w.write(t, "tokens.toml", strings.ReplaceAll(file, shown, made.Hash), 0o600)
	return made.Token
}

// configure writes the configuration of each node as the page says: that of n1, and others with another id, other
// addresses and another certificate.
func (w *walk) configure(t *testing.T, n1 string, raft, http []string) {
	t.Helper()
	for i, id := range []string{"n1", "n2", "n3"} {
		var text strings.Builder
		for line := range strings.Lines(n1) {
			if !strings.Contains(line, "@") { // the list is the same on all
				line = strings.NewReplacer(`"n1"`, `"`+id+`"`, `n1.`, id+".", `n1/`, id+"/", raft[0], raft[i],
					http[0], http[i]).Replace(line)
			}
			text.WriteString(line)
		}
		w.write(t, id+"/northstar.toml", text.String(), 0o600)
	}
}

// await runs commands again until their output has a text.
func (w *walk) await(t *testing.T, text string, lines ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		out, err := w.try(t, lines...)
		if err == nil && strings.Contains(out, text) {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no output with %q: %v\n%s", text, err, out)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// TestInstallPage follows "Three nodes with TLS and tokens", word for word, on other ports.
func TestInstallPage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl, which the page uses, is not on this machine")
	}
	addrs, err := ports.Reserve(6)
	if err != nil {
		t.Fatal(err)
	}
	var replacements []string
	for i, addr := range addrs {
		replacements = append(replacements, fmt.Sprintf("127.0.0.1:770%d", i), addr)
	}
	w := newWalk(t, "docs/install.md", "\n## Three nodes with TLS and tokens\n", "\n## Load balancers\n",
		replacements...)
	w.run(t, w.next(t, "sh", "tls ca").commandLines()...)
	makeToken := w.next(t, "console", "token new").commandLines()
	token := w.token(t, strings.Join(makeToken, "\n"), w.next(t, "toml", "# tokens.toml").text)
	w.configure(t, w.next(t, "toml", "# n1/northstar.toml").text,
		[]string{addrs[0], addrs[2], addrs[4]}, []string{addrs[1], addrs[3], addrs[5]})
	for _, line := range w.next(t, "console", "check-config").commandLines() {
		if node, ok := strings.CutSuffix(line, "&"); ok {
			w.start(t, node)
		} else {
			w.run(t, line)
		}
	}
	use := w.next(t, "console", "export").commandLines()
	use[0] = strings.Replace(use[0], "ns_woFW…", token, 1)
	w.await(t, "ok: 3 of 3 voters healthy", use[0], "northstarctl status")
	out := w.run(t, use...)
	for _, want := range []string{"leader    n", "revision 1\n", `"leader_address":"127.0.0.1:`, "\nhello"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in the output of %q:\n%s", want, use, out)
		}
	}
	certificate := append(use[:1:1], w.next(t, "sh", "--client operator/alice").commandLines()...)
	if out := w.run(t, certificate...); !strings.HasSuffix(strings.TrimSpace(out), "hello") {
		t.Errorf("with a client certificate: %s", out)
	}
	if len(w.blocks) > 0 {
		t.Errorf("not followed: %+v", w.blocks)
	}
}

// machineStubs stand for what the page uses on and between machines. A machine is a directory; its paths are below it.
var machineStubs = map[string]string{
	"scp": `for to; do :; done # the last word
host=${to#root@} host=${host%%:*}
mkdir -p "$WALK/$host/tmp" "$WALK/$host/etc/northstar" "$WALK/$host/var/lib"
for f; do [ "$f" = "$to" ] || cp -p "$f" "$WALK/$host/tmp/"; done`,
	"ssh": `m=$WALK/${1#root@}
export MACHINE=$m
printf '%s' "$2" | sed "s#/etc/northstar#$m/etc/northstar#g; s#cd /tmp#cd $m/tmp#" | sh`,
	"apt-get": `[ "$*" = "install --yes ./northstar-v0.1.0-linux-amd64.deb" ] && [ -e "$3" ]`,
	"install": `[ "$1 $2 $3 $4" = "-m 640 -g northstar" ]
shift 4
/usr/bin/install -m 640 "$@"
sed -i "s#\"/etc/northstar#\"$MACHINE/etc/northstar#; s#\"/var/lib#\"$MACHINE/var/lib#" "$MACHINE/etc/northstar/northstar.toml"`,
	"systemctl": `[ "$*" = "enable --now northstar" ] && touch "$MACHINE/enabled"`,
}

// TestThreeMachinesPage follows the page, word for word, with addresses of the loopback interface and with programs
// that stand for ssh and the package manager.
func TestThreeMachinesPage(t *testing.T) {
	t.Parallel()
	addrs, err := ports.Reserve(2)
	if err != nil {
		t.Fatal(err)
	}
	replacements := []string{"10.0.0.1", "127.0.0.1"}
	for i, addr := range addrs {
		_, port, err := net.SplitHostPort(addr)
		if err != nil {
			t.Fatal(err)
		}
		replacements = append(replacements, fmt.Sprintf(":770%d", i), ":"+port)
	}
	w := newWalk(t, "docs/three-machines.md", "\n## 1.", "\n## 5.", replacements...)
	for name, script := range machineStubs {
		w.write(t, "bin/"+name, "#!/bin/sh\nset -e\n"+script+"\n", 0o755)
	}
	w.write(t, "northstar-v0.1.0-linux-amd64.deb", "", 0o644)
	certificates := w.next(t, "sh", "tls ca").commandLines()
	last := len(certificates) - 1
	w.run(t, certificates[:last]...)
	token := w.token(t, certificates[last], w.next(t, "toml", "[[token]]").text)
	var hosts []string
	for i := 1; i <= 3; i++ {
		hosts = append(hosts, fmt.Sprintf("127.0.0.1%d", i))
	}
	w.configure(t, w.next(t, "toml", `id = "n1"`).text, hosts, hosts)
	w.run(t, w.next(t, "sh", "scp").text)
	for i := 1; i <= 3; i++ {
		host := fmt.Sprintf("127.0.0.1%d", i)
		if _, err := os.Stat(filepath.Join(w.dir, host, "enabled")); err != nil {
			t.Errorf("the unit of machine %d is not enabled: %v", i, err)
		}
		w.start(t, "northstar-node run --config "+host+"/etc/northstar/northstar.toml")
	}
	use := w.next(t, "sh", "export").commandLines()
	use[0] = strings.Replace(use[0], "ns_…", token, 1)
	w.await(t, "ok: 3 of 3 voters healthy", use[0], "northstarctl status")
	if out := w.run(t, use...); !strings.HasSuffix(out, "revision 1\n") {
		t.Errorf("the output of %q:\n%s", use, out)
	}
	if len(w.blocks) > 0 {
		t.Errorf("not followed: %+v", w.blocks)
	}
}

// TestInstallPage_Kubernetes follows the commands for the secrets of the default values, and holds their content
// against the manifest, which is the chart with these values.
func TestInstallPage_Kubernetes(t *testing.T) {
	t.Parallel()
	w := newWalk(t, "docs/install.md", "\n## Kubernetes\n", "\n## Next\n")
	for _, name := range []string{"kubectl", "helm"} {
		w.write(t, "bin/"+name, "#!/bin/sh\necho "+name+" \"$@\"\n", 0o755)
	}
	w.next(t, "sh", "one-machine.yaml")
	out := w.run(t, w.next(t, "sh", "tls ca").commandLines()...)
	chart := read(t, manifest)
	for _, secret := range []string{"northstar-tls", "northstar-tokens"} {
		if !strings.Contains(out, "kubectl create secret generic "+secret+" ") ||
			!strings.Contains(chart, "secretName: "+secret) {
			t.Errorf("the secret %s is not made, or not used:\n%s", secret, out)
		}
	}
	for i := range 3 {
		pod := fmt.Sprintf("northstar-%d", i)
		cert := readCertificate(t, filepath.Join(w.dir, "tls", pod+".crt"))
		if len(cert.URIs) != 1 || cert.URIs[0].String() != "northstar://northstar/node/"+pod {
			t.Errorf("%s: the URIs are %v", pod, cert.URIs)
		}
		for _, host := range []string{
			pod + ".northstar-peers.default.svc.cluster.local", "northstar", "northstar.default.svc", "localhost",
		} {
			if err := cert.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		if _, err := os.Stat(filepath.Join(w.dir, "tls", pod+".key")); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"--cluster-name=northstar\n", "--raft-advertise=$(POD).northstar-peers.default.svc.cluster.local:"} {
		if !strings.Contains(chart, want) {
			t.Errorf("the manifest has no %q", want)
		}
	}
}

func readCertificate(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no certificate", path)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
