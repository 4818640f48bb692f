// Package token defines NorthStar's API tokens: how they are generated, hashed, stored in a file and compared. Its
// only I/O is reading random bytes.
package token

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// Role is the permission of a token. Each role includes the permissions of the weaker ones.
type Role string

// The roles, weakest first. None is for routes without authentication.
const (
	None     Role = "none"
	Observer Role = "observer" // GET /v1
	Client   Role = "client"   // write /v1
	Operator Role = "operator" // all of /admin
	Node     Role = "node"     // calls between nodes; no token has it
)

var roleRank = map[Role]int{None: 0, Observer: 1, Client: 2, Operator: 3, Node: 4}

// ParseRole checks s, which must be observer, client or operator.
func ParseRole(s string) (Role, error) {
	if r := Role(s); roleRank[r] > 0 && r != Node {
		return r, nil
	}
	return "", fmt.Errorf("role must be observer, client or operator (got %q)", s)
}

// Allows reports whether r includes the permissions of need. An unknown r includes only None.
func (r Role) Allows(need Role) bool { return roleRank[r] >= roleRank[need] }

const (
	prefix     = "ns_" // lets scanners recognise leaked tokens
	hashPrefix = "sha256:"
	secretSize = 32

	// MaxTokens limits the tokens of a file: each request is compared with all of them.
	MaxTokens = 1000
	// MaxFileBytes limits the file.
	MaxFileBytes = 1 << 20
)

// Digest is a plain SHA-256: a token has 256 random bits, so a slow hash would add no protection.
type Digest [sha256.Size]byte

// Sum hashes a token as it was sent.
func Sum(tok string) Digest { return sha256.Sum256([]byte(tok)) }

// String returns the form in the file.
func (d Digest) String() string { return hashPrefix + hex.EncodeToString(d[:]) }

// ParseDigest reads that form.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	digits, ok := strings.CutPrefix(s, hashPrefix)
	if !ok || hex.DecodedLen(len(digits)) != len(d) {
		return Digest{}, fmt.Errorf("hash: must be %q and %d hexadecimal digits, as northstarctl token new prints it",
			hashPrefix, hex.EncodedLen(len(d)))
	}
	if _, err := hex.Decode(d[:], []byte(digits)); err != nil {
		return Digest{}, fmt.Errorf("hash: %w", err)
	}
	return d, nil
}

// New returns a new token and its hash.
func New() (tok, hash string) {
	var secret [secretSize]byte
	rand.Read(secret[:]) // never fails: it ends the process
	tok = prefix + base64.RawURLEncoding.EncodeToString(secret[:])
	return tok, Sum(tok).String()
}

// Entry is one token of a file.
type Entry struct {
	Name   string
	Role   Role
	Digest Digest
}

// namePattern is the syntax of names of tokens and of clients, which occur in headers and audit records.
var namePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,62}$`)

// CheckName checks the name of a token, or of a client in a certificate.
func CheckName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf(
			"name must be 1 to 63 letters, digits, '.', '_', '@' and '-', and start with a letter or digit (got %q)", name)
	}
	return nil
}

type file struct {
	Token []struct {
		Name string `toml:"name"`
		Role string `toml:"role"`
		Hash string `toml:"hash"`
	} `toml:"token"`
}

// ParseFile reads a token file: TOML, [[token]] with name, role and hash. The error lists everything that is wrong. A
// file without tokens is an error too: no caller could authenticate.
func ParseFile(data []byte) (*Set, error) {
	if len(data) > MaxFileBytes {
		return nil, fmt.Errorf("token file must be at most %d bytes (got %d)", MaxFileBytes, len(data))
	}
	var f file
	dec := toml.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil {
		return nil, withoutContent(err)
	}
	if n := len(f.Token); n == 0 || n > MaxTokens {
		return nil, fmt.Errorf("token file must have 1 to %d [[token]] tables (got %d)", MaxTokens, n)
	}
	var problems []error
	names := make(map[string]bool)
	set := &Set{}
	for i, t := range f.Token {
		role, err1 := ParseRole(t.Role)
		digest, err2 := ParseDigest(t.Hash)
		err := errors.Join(CheckName(t.Name), err1, err2)
		if names[t.Name] {
			err = errors.Join(err, fmt.Errorf("name %q is used twice", t.Name))
		}
		names[t.Name] = true
		if err != nil {
			problems = append(problems, fmt.Errorf("[[token]] %d: %w", i+1, err))
		}
		set.entries = append(set.entries, Entry{t.Name, role, digest})
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return set, nil
}

// withoutContent returns the error of a file that cannot be decoded. The decoder's own text shows lines of the file.
// Some people note a token beside its hash, and everyone may read the error.
func withoutContent(err error) error {
	var strict *toml.StrictMissingError
	if errors.As(err, &strict) {
		var problems []error
		for i := range strict.Errors {
			line, _ := strict.Errors[i].Position()
			key := strings.Join(strict.Errors[i].Key(), ".")
			problems = append(problems, fmt.Errorf("line %d: unknown key %s", line, key))
		}
		return errors.Join(problems...)
	}
	var decode *toml.DecodeError
	if errors.As(err, &decode) {
		line, column := decode.Position()
		return fmt.Errorf("token file is not TOML: line %d, column %d: %s", line, column,
			strings.TrimPrefix(decode.Error(), "toml: "))
	}
	return errors.New("token file is not TOML")
}

// Set is the tokens of a file. It is immutable.
type Set struct{ entries []Entry }

// Len returns the number of tokens.
func (s *Set) Len() int { return len(s.entries) }

// Find looks up a token in constant time: the time does not depend on which token matches, or how much of it.
func (s *Set) Find(tok string) (Entry, bool) {
	sum := Sum(tok)
	at := -1
	for i := range s.entries {
		same := subtle.ConstantTimeCompare(sum[:], s.entries[i].Digest[:])
		at = subtle.ConstantTimeSelect(same, i, at)
	}
	if at < 0 {
		return Entry{}, false
	}
	return s.entries[at], true
}
