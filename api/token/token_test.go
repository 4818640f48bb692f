package token

import (
	"fmt"
	"strings"
	"testing"
)

func TestNewIsFoundByItsHash(t *testing.T) {
	tok, hash := New()
	other, _ := New()
	if tok == other || !strings.HasPrefix(tok, "ns_") {
		t.Fatalf("tokens %q and %q", tok, other)
	}
	set, err := ParseFile(fmt.Appendf(nil, "[[token]]\nname = \"ann\"\nrole = \"client\"\nhash = %q\n", hash))
	if err != nil {
		t.Fatal(err)
	}
	if e, ok := set.Find(tok); !ok || e.Name != "ann" || e.Role != Client {
		t.Errorf("Find = %+v, %v", e, ok)
	}
	for _, bad := range []string{other, "", tok + "x", tok[:len(tok)-1], hash} {
		if _, ok := set.Find(bad); ok {
			t.Errorf("Find(%q) found something", bad)
		}
	}
}

func TestParseFileNamesEveryProblem(t *testing.T) {
	_, hash := New()
	good := fmt.Sprintf("[[token]]\nname=\"a\"\nrole=\"observer\"\nhash=%q\n", hash)
	for name, tc := range map[string]struct{ in, want string }{
		"empty":                {"", "(got 0)"},
		"not TOML":             {"[[token", "not TOML"},
		"unknown key":          {good + "colour=1\n", "colour"},
		"bad role":             {strings.Replace(good, "observer", "god", 1), `(got "god")`},
		"bad hash":             {strings.Replace(good, "sha256:", "md5:", 1), "hash: must be"},
		"short hash":           {strings.Replace(good, hash, hash[:20], 1), "hash: must be"},
		"bad name":             {strings.Replace(good, `"a"`, `"a b"`, 1), `(got "a b")`},
		"twice":                {good + good, "used twice"},
		"two at the same time": {strings.Replace(strings.Replace(good, "observer", "god", 1), `"a"`, `""`, 1), `(got "")`},
	} {
		if _, err := ParseFile([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
	if set, err := ParseFile([]byte(good)); err != nil || set.Len() != 1 {
		t.Errorf("good file: %v", err)
	}
}

// A file may have a token beside its hash. Errors are shown to everyone, so they name keys and lines, and no content.
func TestErrorsShowNoContent(t *testing.T) {
	tok, hash := New()
	good := fmt.Sprintf("[[token]]\nname = \"sandra\"\nrole = \"observer\"\nhash = %q\n", hash)
	for name, tc := range map[string]struct{ in, want string }{
		"unknown key":         {good + fmt.Sprintf("token = %q\n", tok), "line 5: unknown key token.token"},
		"beside one":          {good + fmt.Sprintf("colour = 1\n# %s\n", tok), "line 5: unknown key token.colour"},
		"two":                 {"a = 1\n" + good + "b = 1\n", "line 1: unknown key a\nline 6: unknown key token.b"},
		"unknown table":       {good + fmt.Sprintf("[[tokens]]\nhash = %q\n", tok), "line 5: unknown key tokens"},
		"no quotes":           {good + "token = " + tok + "\n", "line 5"},
		"no end":              {good + "token = \"" + tok + "\n", "line 5"},
		"no key":              {good + tok + "\n", "line 5"},
		"twice":               {good + "hash = \"" + tok + "\"\n", "hash"},
		"another kind":        {good + "[[token]]\nname = [\"" + tok + "\"]\n", "not TOML"},
		"the token as a hash": {strings.Replace(good, hash, tok, 1), "hash: must be"},
	} {
		_, err := ParseFile([]byte(tc.in))
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
			continue
		}
		for _, part := range []string{tok, tok[:12], hash, "sandra", "observer"} {
			if strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error has %q of the file: %v", name, part, err)
			}
		}
	}
}

func TestRolesInclude(t *testing.T) {
	order := []Role{None, Observer, Client, Operator}
	for i, r := range order {
		for j, need := range order {
			if got := r.Allows(need); got != (i >= j) {
				t.Errorf("%s includes %s = %v", r, need, got)
			}
		}
	}
	if Role("admin").Allows(Observer) {
		t.Error("an unknown role may observe")
	}
}

func FuzzParseFile(f *testing.F) {
	_, hash := New()
	f.Add(fmt.Appendf(nil, "[[token]]\nname=\"a\"\nrole=\"observer\"\nhash=%q\n", hash))
	f.Fuzz(func(t *testing.T, data []byte) {
		set, err := ParseFile(data)
		if (set == nil) != (err != nil) {
			t.Fatal("neither or both of a set and an error")
		}
	})
}
