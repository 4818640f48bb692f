// Holds a role and writes under its fencing token. It goes on when the cluster's leader fails.
// Usage: java Leader.java ROLE WRITES. Needs Java 17 or later, and nothing else.
// Environment: NORTHSTAR_ENDPOINTS (host:port,…), NORTHSTAR_TOKEN; NORTHSTAR_SCHEME=https with the CA in the trust
// store (-Djavax.net.ssl.trustStore=…).
// Exit codes: 0 done, 1 no answer in time, 3 the role is lost.

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.Map;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Leader {
    static final Duration TTL = Duration.ofSeconds(10);
    static final Set<Integer> RETRIED = Set.of(429, 502, 503, 504);
    static final HttpClient HTTP = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1)
            .connectTimeout(Duration.ofSeconds(1)).build();
    static final Deque<String> ENDPOINTS = new ArrayDeque<>(Arrays.asList(
            env("NORTHSTAR_ENDPOINTS", "127.0.0.1:7701,127.0.0.1:7703,127.0.0.1:7705").split(",")));

    /** The cluster's answer is an error that another try does not change. */
    static class Refused extends RuntimeException {
        Refused(String message) {
            super(message);
        }
    }

    static String env(String name, String otherwise) {
        String value = System.getenv(name);
        return value == null || value.isEmpty() ? otherwise : value;
    }

    /** Returns a field of a JSON object. Real programs use a JSON parser. */
    static String field(String json, String name) {
        Matcher m = Pattern.compile("\"" + name + "\":\\s*\"?([^\",}]*)").matcher(json);
        return m.find() ? m.group(1) : "";
    }

    /**
     * Sends one request to any node that answers. A node that is gone, or that knows no leader yet, is followed by the
     * next one. A write is safe to repeat: it carries an idempotency key.
     */
    static String call(String method, String path, String body, Map<String, String> headers, Duration timeout)
            throws InterruptedException {
        long end = System.nanoTime() + timeout.toNanos();
        while (System.nanoTime() - end < 0) {
            URI uri = URI.create(env("NORTHSTAR_SCHEME", "http") + "://" + ENDPOINTS.peek() + path);
            HttpRequest.Builder request = HttpRequest.newBuilder(uri).timeout(Duration.ofSeconds(20))
                    .method(method, HttpRequest.BodyPublishers.ofString(body));
            headers.forEach(request::header);
            if (!env("NORTHSTAR_TOKEN", "").isEmpty()) {
                request.header("Authorization", "Bearer " + System.getenv("NORTHSTAR_TOKEN"));
            }
            try {
                HttpResponse<String> answer = HTTP.send(request.build(), HttpResponse.BodyHandlers.ofString());
                if (answer.statusCode() / 100 == 2) {
                    return answer.body();
                }
                if (!RETRIED.contains(answer.statusCode())) {
                    throw new Refused(answer.body());
                }
            } catch (IOException e) {
                // refused, reset or timed out
            }
            ENDPOINTS.add(ENDPOINTS.remove());
            Thread.sleep(100);
        }
        System.err.println("no node answers");
        System.exit(1);
        return null;
    }

    static String call(String method, String path, String body) throws InterruptedException {
        return call(method, path, body, Map.of(), Duration.ofSeconds(30));
    }

    /** Renews a session and returns when the renewal that was answered was sent. */
    static long renew(String session) throws InterruptedException {
        long sent = System.nanoTime();
        call("POST", "/v1/sessions/" + session + "/renew", "", Map.of(), TTL);
        return sent;
    }

    static void lead(String role, int writes) throws InterruptedException {
        String leader = call("GET", "/leader", "");
        System.out.println("leader " + field(leader, "leader_id") + " at " + field(leader, "leader_address"));

        String wanted = "{\"name\":\"java-" + ProcessHandle.current().pid() + "\",\"ttl_ms\":" + TTL.toMillis() + "}";
        String session = field(call("POST", "/v1/sessions", wanted), "session_id");
        String campaign = "{\"session_id\":\"" + session + "\",\"value\":\"java\",\"wait_ms\":3000}";
        String token = "";
        long renewed = 0; // when the last renewal that was answered was sent
        while (token.isEmpty()) {
            try {
                token = field(call("POST", "/v1/roles/" + role + "/campaign", campaign), "token");
            } catch (Refused e) {
                if (!field(e.getMessage(), "code").equals("4013")) { // another session holds it
                    throw e;
                }
            }
            renewed = renew(session); // a session must not end while it waits for the role
        }
        System.out.println("role " + role + " token " + token);

        for (int i = 1; i <= writes; i++) {
            if (System.nanoTime() - renewed > TTL.toNanos() / 3) {
                renewed = renew(session);
            }
            // The holder's own deadline ends before the cluster gives the role away. The fencing token protects even a
            // holder that was stopped after this line.
            if (System.nanoTime() - renewed > TTL.toNanos() / 10 * 9) {
                throw new Refused("too late to act");
            }
            Map<String, String> fenced = Map.of("X-Northstar-Fence", role + "=" + token,
                    "Idempotency-Key", session + "-" + i);
            String answer = call("PUT", "/v1/kv/examples/" + role + "/" + i, "" + i, fenced, Duration.ofSeconds(30));
            System.out.println("write " + i + " revision " + field(answer, "revision"));
            Thread.sleep(50);
        }
        call("DELETE", "/v1/roles/" + role + "?session_id=" + session, "");
        call("DELETE", "/v1/sessions/" + session, "");
        System.out.println("resigned");
    }

    public static void main(String[] args) throws InterruptedException {
        try {
            lead(args[0], Integer.parseInt(args[1]));
        } catch (Refused e) {
            System.err.println(e.getMessage());
            System.exit(3);
        }
    }
}
